"""The settings of bench/minilm.py, chosen on held-out training data."""

from __future__ import annotations

from typing import Any

_HEAD: dict[str, Any] = {
    "head_lot": 0.1,
    "head_steps": 80,
    "head_rate": 0.03,
    "lot": 0.1,
    "steps": 0,
    "rate": 0.0,
    "head_rate_then": 0.0,
    "bound": 1.0,
    "scale": 8.0,
}
_LORA = _HEAD | {"head_steps": 40, "lot": 0.25, "steps": 16, "rate": 2e-3}
_FULL = _LORA | {"rate": 2e-4}

SETTINGS: dict[tuple[str, str, float], dict[str, Any]] = {
    (task, mode, epsilon): settings
    for task in ("r8", "20news")
    for mode, settings in (("head", _HEAD), ("lora", _LORA), ("full", _FULL))
    for epsilon in (0.0, 1.0, 3.0, 8.0)
}
