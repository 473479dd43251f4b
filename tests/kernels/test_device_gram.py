"""Gram sums on a device: the Triton kernel equals torch in the interpreter, compiles without TF32, and is off."""

import importlib.util

import pytest
import torch

from sordino.kernels.device_gram import compare_with_float64, find_device_gram_fault
from sordino.per_sample.formulas.output_gradient import compute_gram_sums
from tests.kernels.test_device_noise import run_alone

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
CPU = torch.device("cpu")


def test_a_kernel_is_taken_only_if_its_sums_are_those_of_float64():
    plain = compute_gram_sums.plain

    def round_as_tf32(x):
        return (x.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)

    def in_tf32(a, g):
        return plain(round_as_tf32(a), round_as_tf32(g))

    def without_the_lower_half(a, g):
        squared, diagonal = plain(a, g)
        return (squared + diagonal) / 2, diagonal

    def fails(a, g):
        raise RuntimeError("no driver")

    assert compare_with_float64(plain, CPU) is None
    assert "differ from float64" in compare_with_float64(in_tf32, CPU)
    assert "differ from float64" in compare_with_float64(without_the_lower_half, CPU)
    assert "failed (RuntimeError)" in compare_with_float64(fails, CPU)


def test_it_is_off_unless_it_is_asked_for(monkeypatch):
    assert "is not set" in find_device_gram_fault.__wrapped__(CPU)
    monkeypatch.setenv("SORDINO_DEVICE_GRAM", "1")
    monkeypatch.delenv("SORDINO_KERNELS", raising=False)
    assert "not a kind of device" in find_device_gram_fault.__wrapped__(CPU)


@needs_triton
def test_the_kernel_equals_torchs_products_in_the_interpreter():
    assert "equal" in run_alone("import tests.kernels.interpreted_gram", TRITON_INTERPRET="1")


_COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sordino.kernels.triton_gram import TILE, WIDTH, gram_kernel

types = {"out": "*fp32", "a": "*fp32", "g": "*fp32"}
types |= dict.fromkeys(("positions", "a_columns", "g_columns"), "i32")
types |= {f"{x}_{step}_step": "i64" for x in "ag" for step in ("sample", "position", "column")}
types |= dict.fromkeys(("TILE", "WIDTH"), "constexpr")
for capability in (80, 90):
    source = ASTSource(fn=gram_kernel, signature=types, constexprs={"TILE": TILE, "WIDTH": WIDTH})
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert f".target sm_{capability}" in made.asm["ptx"]
    assert "tf32" not in made.asm["ptx"]
    assert len(made.asm["cubin"]) > 1000
print("compiled")
"""


@needs_triton
def test_the_kernel_compiles_ahead_of_time_for_sm_80_and_sm_90_without_tf32(tmp_path):
    assert "compiled" in run_alone(_COMPILED, TRITON_CACHE_DIR=str(tmp_path))
