"""Identifies the processor, as far as the speed of products depends on it."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

_INFORMATION = Path("/proc/cpuinfo")
_ZEN_4 = ("AuthenticAMD", "25")
"""Vendor and family of processors that run sixteen floats as two times eight; their predecessor, Zen 3, has no AVX-512."""


def parse_cpuinfo(text: str) -> dict[str, str]:
    """Returns what the text of /proc/cpuinfo says of the first processor, by name.

    >>> parse_cpuinfo("vendor_id : A")["vendor_id"]
    'A'
    """
    lines = [line.partition(":") for line in text.split("\n\n")[0].splitlines()]
    return {name.strip(): value.strip() for name, _, value in lines}


@cache
def _read_cpuinfo() -> dict[str, str]:
    """Returns what the system says of this processor; nothing where it cannot be asked."""
    try:
        return parse_cpuinfo(_INFORMATION.read_text())
    except OSError:
        return {}


def processor_name() -> str:
    """Returns the processor's name, with family and model, which a virtual machine may not put into the name."""
    said = _read_cpuinfo()
    numbers = [said[key] for key in ("cpu family", "model") if key in said]
    plain = said.get("model name") or platform.processor() or platform.machine()
    return f"{plain} ({'.'.join(numbers)})" if numbers else plain


def instruction_set(said: dict[str, str] | None = None) -> str:
    """Returns the processor instructions torch says it uses, and whether the processor multiplies bfloat16.

    torch's libraries and the kernels look at both.

    >>> instruction_set({"flags": "avx512f avx512_bf16"}).endswith(", bf16")
    True
    """
    import torch  # not for the noise, which needs none

    said = _read_cpuinfo() if said is None else said
    low = "avx512_bf16" in said.get("flags", "").split()
    return torch.backends.cpu.get_cpu_capability() + (", bf16" if low else "")


def computes_sixteen_at_once(said: dict[str, str] | None = None) -> bool:
    """Returns whether the processor computes sixteen floats, where it has such vectors at all, in one piece.

    In two pieces they are no faster than eight in most kernels, and rows that are no multiple of sixteen waste more.

    >>> computes_sixteen_at_once({"vendor_id": "GenuineIntel", "cpu family": "6"})
    True
    >>> computes_sixteen_at_once({"vendor_id": "AuthenticAMD", "cpu family": "25"})
    False
    """
    said = _read_cpuinfo() if said is None else said
    return (said.get("vendor_id"), said.get("cpu family")) != _ZEN_4


def torch_computes_sixteen_at_once(instructions: str, said: dict[str, str] | None = None) -> bool:
    """Returns whether torch's own products are left alone because they may compute sixteen floats in one piece.

    That is so on processors with AVX-512 that are not AMD's, where no kernel was timed. On AMD's torch multiplies
    matrices eight floats at a time, and on Zen 5, which computes sixteen in one piece, the compiled product of matrices
    took 0.43 to 0.46 of torch's time, and Winograd's passes 0.5 to 0.7 of that of torch's convolutions, but 1.05 at the
    input of 16 channels (`python -m bench.kernels`).

    >>> intel = {"vendor_id": "GenuineIntel", "cpu family": "6"}
    >>> zen_5 = {"vendor_id": "AuthenticAMD", "cpu family": "26"}
    >>> torch_computes_sixteen_at_once("AVX2"), torch_computes_sixteen_at_once("AVX512", intel)
    (False, True)
    >>> torch_computes_sixteen_at_once("AVX512", zen_5)
    False
    """
    said = _read_cpuinfo() if said is None else said
    return instructions == "AVX512" and said.get("vendor_id") != "AuthenticAMD"
