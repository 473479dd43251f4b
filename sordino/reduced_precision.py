"""Switches off products in less than float32: TF32, and sums of half-precision products in half precision.

TF32 rounds the factors of a product to ten bits of fraction. A Gram norm whose terms cancel then reads low by a percent,
which no slack covers. PyTorch allows TF32 in convolutions by default and in other products if asked; the user's model may
go on using it, since its gradients are what they are, but norms and sums of those gradients are computed without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_REDUCTIONS: tuple[tuple[Callable[[], Any], Callable[..., None]], ...] = (
    (
        torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
        torch._C._set_cublas_allow_fp16_reduced_precision_reduction,
    ),
    (
        torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
        torch._C._set_cublas_allow_bf16_reduced_precision_reduction,
    ),
)
_EXACT = "ieee"
_NAMED = (("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"), ("mkldnn", "matmul"), ("mkldnn", "conv"))
"""Switches that decide how products are rounded, by library and operation."""


def _read(library: str, operation: str) -> str:
    """Returns the switch for reduced precision of an operation in a library's products: "ieee", "tf32", "none" where
    nothing was said.
    """
    if hasattr(torch._C, "_get_fp32_precision_getter"):  # from PyTorch 2.9 on
        return str(torch._C._get_fp32_precision_getter(library, operation))
    if (library, operation) == ("cuda", "conv"):
        return "tf32" if torch.backends.cudnn.allow_tf32 else _EXACT
    return "none"


def _write(library: str, operation: str, precision: str) -> None:
    """Sets the switch for reduced precision of an operation in a library's products."""
    if hasattr(torch._C, "_set_fp32_precision_setter"):
        torch._C._set_fp32_precision_setter(library, operation, precision)
    elif (library, operation) == ("cuda", "conv"):
        torch.backends.cudnn.allow_tf32 = precision != _EXACT


class FullPrecisionProducts:
    """Computes products of float32 in float32 for as long as it lasts; it is a switch of the process, so keep it short."""

    __slots__ = ("_convolutions", "_matmul", "_mkldnn", "_older", "_reductions")

    def __enter__(self) -> None:
        """Remembers PyTorch's switches and sets them to full precision."""
        self._convolutions, self._matmul = _read("cuda", "conv"), _read("cuda", "matmul")
        self._reductions = [read() for read, _ in _REDUCTIONS]  # within a sum, and between the parts of one
        self._older: str | None = None
        if self._matmul != _EXACT:
            # `set_float32_matmul_precision` is an older switch of the same thing. The two must agree, or PyTorch raises;
            # the older writes the newer ones, of the CPU's library too.
            self._older, self._mkldnn = read_matmul_precision(), _read("mkldnn", "matmul")
            if self._older is not None:
                torch._C._set_float32_matmul_precision("highest")
            _write("cuda", "matmul", _EXACT)
        _write("cuda", "conv", _EXACT)
        for _, write in _REDUCTIONS:
            write(False)

    def __exit__(self, *error: object) -> None:
        """Puts PyTorch's switches back."""
        # Whatever entering changed goes back to what it was, also after an error inside.
        for (_, write), allowed in zip(_REDUCTIONS, self._reductions, strict=True):
            write(*allowed) if isinstance(allowed, tuple) else write(allowed)
        _write("cuda", "conv", self._convolutions)
        if self._matmul != _EXACT:
            if self._older is not None:
                torch._C._set_float32_matmul_precision(self._older)
                _write("mkldnn", "matmul", self._mkldnn)
            _write("cuda", "matmul", self._matmul)


def read_matmul_precision() -> str | None:
    """Returns the reduced precision that `torch.set_float32_matmul_precision` says, or None where it was overruled by
    the newer switches.
    """
    try:
        return str(torch._C._get_float32_matmul_precision())
    except RuntimeError:
        return None


def describe_precision_switches() -> str:
    """Returns in words the switches for products in reduced precision, for the record of a run's environment.

    A switch about which nothing was said rounds as one that was set to full precision, so the two read the same.
    """
    switches = {f"{library} {operation}": _read(library, operation) for library, operation in _NAMED}
    switches = {name: _EXACT if value == "none" else value for name, value in switches.items()}
    switches["half-precision sums"] = str([read() for read, _ in _REDUCTIONS])
    return ", ".join(f"{name} {value}" for name, value in switches.items())
