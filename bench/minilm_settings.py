"""The settings of bench/minilm.py, chosen on held-out training data of R8; those of 20 Newsgroups are the same."""

from __future__ import annotations

from typing import Any

_HEAD: dict[str, Any] = {"head_lot": 0.1, "head_steps": 80, "head_rate": 0.03, "lot": 0.1, "steps": 0, "rate": 0.0}
_LAYER: dict[str, Any] = {"head_lot": 0.1, "head_steps": 60, "head_rate": 0.03, "lot": 0.4, "steps": 8, "rate": 2e-2}

SETTINGS: dict[tuple[str, str, float], dict[str, Any]] = {
    (task, mode, epsilon): _HEAD if mode == "head" else _LAYER if mode == "lora" else _LAYER | {"rate": 1e-3}
    for task in ("r8", "20news")
    for mode in ("head", "lora", "full")
    for epsilon in (0.0, 1.0, 3.0, 8.0)
}
