"""The settings of bench/minilm.py, chosen on held-out training data."""

from __future__ import annotations

from typing import Any

_HEAD: dict[str, Any] = {"lot": 0.2, "head_steps": 100, "head_rate": 0.01, "steps": 0, "rate": 0.0}
_TUNED: dict[str, Any] = {"lot": 0.2, "head_steps": 60, "head_rate": 0.01, "steps": 30, "rate": 1e-3}

SETTINGS: dict[tuple[str, str, float], dict[str, Any]] = {
    (task, mode, epsilon): _HEAD if mode == "head" else _TUNED
    for task in ("r8", "20news")
    for mode in ("head", "lora", "full")
    for epsilon in (0.0, 1.0, 3.0, 8.0)
}
