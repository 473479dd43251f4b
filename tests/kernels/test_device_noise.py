"""Noise made on a device: the Triton kernel gives the CPU's bits in the interpreter, and compiles for two kinds of GPU."""

import importlib.util
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

import sordino as sd
from sordino.noise_key import NoiseKey
from sordino.release.noise import Gaussian
from sordino.rng import device_noise, normals
from sordino.rng.chacha_stream import ChaChaStream
from sordino.rng.device_noise import compare_with_cpu, find_device_noise_fault
from sordino.rng.streams import CIPHER, DEVICE_CIPHER, Rng

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
ROOT = Path(__file__).parents[2]


def run_alone(code: str, **env: str) -> str:
    """Runs code in a process of its own, because Triton decides once whether it interprets; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(("number", "block"), [(0, 0), (2**40 + 5, 12345), (1, 2**32 - 3), (2**64 - 1, 2**33 + 7)])
def test_the_stream_is_chacha20_with_a_counter_that_carries(number, block):
    """The oracle is `cryptography` at each block by itself; around 2³² the counter's low word carries."""
    key = bytes(range(7, 39))
    words = ChaChaStream(key, number).words_at(16 * block, 16 * 6)
    for k in range(6):
        nonce = struct.pack("<QQ", block + k, number)
        expected = Cipher(algorithms.ChaCha20(key, nonce), None).encryptor().update(bytes(64))
        assert words[16 * k : 16 * k + 16].tobytes() == expected


def test_chacha20_gives_the_published_key_stream():
    """Key, nonce and counter 0: the first bytes of ChaCha20's key stream (RFC 8439, appendix A.1, test vector 1)."""
    stream = bytearray(16)
    ChaChaStream(bytes(32), 0).fill(stream)
    assert stream.hex() == "76b8e0ada0f13d90405d6ae55386bd28"


def test_a_stream_of_devices_is_named_in_its_state_and_goes_on_from_it():
    stream = Rng.from_seed(3).with_device_cipher()
    stream.normal(10)
    state = stream.state_dict()
    assert state["cipher"] == DEVICE_CIPHER
    again = Rng.replay(state)
    assert torch.equal(stream.normal(1000), again.normal(1000))
    assert Rng.from_seed(3).state_dict()["cipher"] == CIPHER
    with pytest.raises(ValueError, match="draws behind it"):
        stream.with_device_cipher()
    with pytest.raises(ValueError, match="ChaCha20"):
        Rng.replay({**state, "cipher": "ChaCha20"})  # the layout of version 0.1


def test_the_two_ciphers_give_different_noise_and_each_its_own_again():
    first, second = (
        Rng.replay({"cipher": cipher, "key": "07" * 32, "counter": 4}).normal(64) for cipher in (CIPHER, DEVICE_CIPHER)
    )
    assert not torch.equal(first, second)
    rng = Rng.replay({"cipher": DEVICE_CIPHER, "key": "07" * 32, "counter": 4})
    assert torch.equal(rng.normals_at(64, [(10, 20)]), second[10:30])
    assert rng.counter == 5
    assert len(rng.words(7)) == 7
    assert 0 <= rng.seed() < 2**63


def test_keys_have_the_cipher_that_a_state_names():
    key = NoiseKey.of_streams(*(Rng.from_seed(k) for k in range(3)))
    counters = {"root": 1, "noise": 2, "forward": 3}
    root, noise, forward = key.streams_at(counters, DEVICE_CIPHER)
    assert (root.cipher, noise.cipher, forward.cipher) == (CIPHER, DEVICE_CIPHER, CIPHER)
    assert key.streams_at(counters)[1].cipher == CIPHER


class _WithoutMoreBits(ChaChaStream):
    """A stream whose rare radii all take the same 32 more bits, as if that branch were not written."""

    def word_at(self, index):
        return 1 << 31


def test_no_device_is_taken_unless_its_kernel_gives_the_bits_of_the_cpu():
    def right(stream, n, scale):
        return torch.from_numpy(normals.normals_at(stream, n, 0, n, scale))

    def wrong_in_one_bit(stream, n, scale):
        values = right(stream, n, scale)
        values.view(torch.int32)[n // 3] ^= 1
        return values

    def without_the_rare_branch(stream, n, scale):
        return right(_WithoutMoreBits(device_noise._SELF_TEST_KEY, device_noise._SELF_TEST_DRAW), n, scale)

    def fails(stream, n, scale):
        raise RuntimeError("no driver")

    assert compare_with_cpu(right) is None
    assert "1 of the first 65536" in compare_with_cpu(wrong_in_one_bit)
    assert "not those of the CPU" in compare_with_cpu(without_the_rare_branch)
    assert "failed (RuntimeError)" in compare_with_cpu(fails)
    assert "not a kind of device" in find_device_noise_fault(torch.device("cpu"))


def test_on_the_cpu_nothing_changes():
    model = torch.nn.Linear(3, 1)
    private = sd.Private(model, lambda m, x: m(x).square().sum(1), sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), seed=0)
    for lot in private.draws(torch.utils.data.TensorDataset(torch.randn(50, 3)), sd.Poisson(0.2), steps=1):
        private.backward(lot)
    assert private.open_for_audit().noise_state["cipher"] == CIPHER


def test_gaussian_noise_of_a_device_stream_is_that_of_its_normals():
    value = {"a": torch.zeros(7, 5), "b": torch.zeros(3)}
    Gaussian(1.0).add_(value, 1.5, Rng.from_seed(3).with_device_cipher(), factor=0.5)
    expected = Rng.from_seed(3).with_device_cipher().normals_at(38, [(0, 38)], 1.5) * 0.5
    assert torch.equal(torch.cat([tensor.flatten() for tensor in value.values()]), expected)


@needs_triton
def test_the_kernel_gives_the_bits_of_the_cpu_in_the_interpreter_and_a_run_uses_and_names_it():
    assert "equal" in run_alone("import tests.kernels.interpreted_noise", TRITON_INTERPRET="1")


_COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sordino.kernels.triton_noise import ROWS, normals_kernel
from sordino.rng.normals import BLOCK

types = {"out": "*fp32", "key": "*i32", "first": "i64", "count": "i64", "scale": "fp32"}
types |= dict.fromkeys(("ROWS", "ALIGNED", "BLOCK"), "constexpr")
for capability in (80, 90):
    for aligned in (True, False):
        constants = {"ROWS": ROWS, "ALIGNED": aligned, "BLOCK": BLOCK}
        source = ASTSource(fn=normals_kernel, signature=types, constexprs=constants)
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"enable_fp_fusion": False})
        assert f".target sm_{capability}" in made.asm["ptx"]
        assert "fma." not in made.asm["ptx"]  # a fused multiply-add would round otherwise than the CPU
        assert "sqrt.rn.f32" in made.asm["ptx"]
        assert "approx" not in made.asm["ptx"]
        assert len(made.asm["cubin"]) > 1000
print("compiled")
"""


@needs_triton
def test_the_kernel_compiles_ahead_of_time_for_sm_80_and_sm_90_without_fused_products(tmp_path):
    assert "compiled" in run_alone(_COMPILED, TRITON_CACHE_DIR=str(tmp_path))
