"""The settings of bench/minilm.py, chosen on held-out training data; docs/recipes.md says among which."""

from __future__ import annotations

from typing import Any

_HEAD: dict[str, Any] = {
    "head_lot": 0.1,
    "head_steps": 200,
    "head_rate": 0.01,
    "head_noise": 0.0,
    "lot": 0.3,
    "steps": 0,
    "rate": 0.0,
    "query_rate": 0.0,
    "with_rate": 0.0,
    "last_steps": 0,
    "last_rate": 0.0,
    "bound": 1.0,
    "layer_bound": 0.5,
    "rank": 16,
    "scale": 1.0,
}
_LONGER = {"head_lot": 0.2, "head_steps": 300, "head_rate": 0.005}
_LORA, _FULL = {"steps": 12, "rate": 1e-3}, {"steps": 12, "rate": 1e-4}
_NO_NOISE = {"head_lot": 0.2, "head_steps": 300, "head_rate": 0.002}
SETTINGS: dict[tuple[str, str, float], dict[str, Any]] = {}
for _epsilon in (1.0, 3.0, 8.0):
    _r8, _news = _HEAD, _HEAD | (_LONGER if _epsilon > 1 else {"head_rate": 0.005})
    for _task, _head, _before in (("r8", _r8, 160), ("20news", _news, 280 if _epsilon > 1 else 160)):
        SETTINGS[_task, "head", _epsilon] = _head
        SETTINGS[_task, "lora", _epsilon] = _head | _LORA | {"head_steps": _before}
        SETTINGS[_task, "full", _epsilon] = _head | _FULL | {"head_steps": _before}
for _task in ("r8", "20news"):
    SETTINGS[_task, "head", 0.0] = _HEAD | _NO_NOISE
