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
    "directions": 384,
    "pool_rate": 0.0,
    "rate": 0.0,
    "last_steps": 0,
    "last_rate": 0.0,
    "bound": 1.0,
    "tail_bound": 1.0,
    "scale": 8.0,
}
_LONGER = {"head_lot": 0.2, "head_steps": 300, "head_rate": 0.005}
_LORA, _FULL = {"steps": 12, "rate": 1e-3}, {"steps": 12, "rate": 1e-4}
_NO_NOISE = {"head_lot": 0.2, "head_steps": 300, "head_rate": 0.002}
_ATTENTION = {"head_noise": 1.07, "steps": 12, "pool_rate": 0.06, "tail_bound": 0.3}
_ON_R8 = _ATTENTION | {"head_steps": 120, "last_steps": 100, "last_rate": 0.008}
_ON_NEWS = {
    3.0: _ATTENTION | {"lot": 0.4, "steps": 10, "head_steps": 200, "last_steps": 100, "last_rate": 0.005},
    8.0: {"head_noise": 1.1, "steps": 16, "pool_rate": 0.06, "head_steps": 240, "last_steps": 60, "last_rate": 0.003},
}

SETTINGS: dict[tuple[str, str, float], dict[str, Any]] = {}
for _epsilon in (1.0, 3.0, 8.0):
    _r8, _news = _HEAD, _HEAD | (_LONGER if _epsilon > 1 else {"head_rate": 0.005})
    for _task, _head, _before in (("r8", _r8, 160), ("20news", _news, 280 if _epsilon > 1 else 160)):
        SETTINGS[_task, "head", _epsilon] = _head
        SETTINGS[_task, "lora", _epsilon] = _head | _LORA | {"head_steps": _before}
        SETTINGS[_task, "full", _epsilon] = _head | _FULL | {"head_steps": _before}
    SETTINGS["r8", "attention", _epsilon] = _r8 | _ON_R8
    SETTINGS["20news", "attention", _epsilon] = _news | _ON_NEWS[max(3.0, _epsilon)]
for _task in ("r8", "20news"):
    SETTINGS[_task, "head", 0.0] = _HEAD | _NO_NOISE
