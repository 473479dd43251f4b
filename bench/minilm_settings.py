"""The settings of bench/minilm.py, chosen on held-out training data.

docs/recipes.md says among which they were chosen.
"""

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
    "pool_rate": 0.0,
    "with_rate": 0.0,
    "last_steps": 0,
    "last_rate": 0.0,
    "bound": 1.0,
    "layer_bound": 0.5,
    "rank": 4,
    "scale": 1.0,
    "adapted": "",
}
_LONGER = {"head_lot": 0.2, "head_steps": 300, "head_rate": 0.005}
_NO_NOISE = {"head_lot": 0.2, "head_steps": 300, "head_rate": 0.002}
_ON_R8: dict[str, Any] = {
    "head_steps": 60,
    "head_noise": 2.0,
    "steps": 60,
    "rate": 2e-3,
    "query_rate": 2e-3,
    "with_rate": 4e-3,
}
_ON_R8 |= {"adapted": "query,value,mixed,narrower"}
_ON_NEWS: dict[str, Any] = {
    "head_lot": 0.4,
    "head_steps": 100,
    "last_steps": 100,
    "with_rate": 8e-3,
    "rate": 3e-3,
    "query_rate": 1e-2,
}
_ON_NEWS |= {"pool_rate": 0.03, "scale": 0.3, "layer_bound": 1.0, "adapted": "query,value,narrower"}
_AT_3 = _ON_NEWS | {"head_noise": 1.4, "lot": 0.8, "steps": 20, "last_rate": 6e-3, "rank": 2}
_AT_8 = _ON_NEWS | {"head_noise": 1.5, "lot": 0.6, "steps": 30, "last_rate": 5e-3}

_ATTENTION = {"head_noise": 1.07, "steps": 12, "pool_rate": 0.06, "layer_bound": 0.3}
_ON_R8_POOL = _ATTENTION | {"head_steps": 120, "last_steps": 100, "last_rate": 8e-3}
_AT_3_POOL = _ATTENTION | {"lot": 0.4, "steps": 10, "head_steps": 200, "last_steps": 100, "last_rate": 5e-3}
_AT_8_POOL: dict[str, Any] = {"head_noise": 1.1, "steps": 16, "pool_rate": 0.06, "layer_bound": 1.0, "head_steps": 240}
_AT_8_POOL |= {"last_steps": 60, "last_rate": 3e-3}
_FREE = {
    "head_noise": 0.0,
    "lot": 0.1,
    "steps": 150,
    "rate": 1e-3,
    "query_rate": 1e-3,
    "with_rate": 1e-3,
    "last_steps": 0,
}

SETTINGS: dict[tuple[str, str, float], dict[str, Any]] = {}
for _epsilon in (1.0, 3.0, 8.0):
    _news = _HEAD | (_LONGER if _epsilon > 1 else {"head_rate": 0.005})
    SETTINGS["r8", "head", _epsilon] = _HEAD
    SETTINGS["r8", "attention", _epsilon] = _HEAD | _ON_R8_POOL
    SETTINGS["r8", "lora", _epsilon] = _HEAD | _ON_R8
    SETTINGS["20news", "head", _epsilon] = _news
    SETTINGS["20news", "attention", _epsilon] = _news | (_AT_8_POOL if _epsilon > 3 else _AT_3_POOL)
    SETTINGS["20news", "lora", _epsilon] = _HEAD | (_AT_8 if _epsilon > 3 else _AT_3)
    for _task in ("r8", "20news"):
        SETTINGS[_task, "full", _epsilon] = SETTINGS[_task, "lora", _epsilon] | {"rate": 1e-4, "adapted": ""}
for _task, _lora in (("r8", _ON_R8), ("20news", _AT_8)):
    SETTINGS[_task, "head", 0.0] = _HEAD | _NO_NOISE
    SETTINGS[_task, "lora", 0.0] = _HEAD | _lora | _NO_NOISE | _FREE
