"""What other libraries call the options of a run, so that people can bring their words.

Opacus says `max_grad_norm` and `sample_rate`, TensorFlow Privacy `l2_norm_clip`, torch `lr`, the papers σ and lot. The
command line and `sordino.fit` take these names for the options that they mean.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

FURTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "weigher": ("clipping", "clipping-rule"),
    "learning_rate": ("lr",),
    "epsilon": ("eps", "target-epsilon"),
    "delta": ("target-delta",),
    "bound": ("clip", "max-grad-norm", "clip-norm", "l2-norm-clip"),
    "noise_multiplier": ("sigma", "multiplier"),
    "multiplier": ("sigma", "noise-multiplier"),
    "rate": ("sample-rate", "sampling-rate"),
    "batch_size": ("lot", "batch", "lot-size"),
    "epochs": ("num-epochs", "passes"),
    "steps": ("max-steps", "num-steps", "iterations"),
    "physical_batch": ("max-physical-batch-size", "micro-batch"),
    "weight_decay": ("wd",),
    "class_weights": ("class-weight",),
    "optimizer": ("optim", "optimiser"),
    "schedule": ("lr-schedule", "scheduler"),
    "warm_up": ("warmup", "warmup-steps"),
    "target": ("label", "label-column"),
    "data": ("file", "csv"),
    "test": ("test-data",),
    "held_out": ("test-size", "test-share"),
    "bounds": ("limits", "low-high"),
    "drop": ("exclude", "ignore-columns"),
    "missing": ("missing-values",),
    "out": ("output", "output-dir"),
    "model": ("network", "arch"),
    "widths": ("hidden",),
    "dataset_size": ("records", "sample-size"),
    "non_private": ("nonprivate", "no-privacy"),
    "normalise": ("normalize",),
    "seed": ("random-seed", "random-state"),
    "runs": ("trials",),
}
"""Other names of an option, by its field; the first are the most usual. A command's own options come first."""


def use_own_names(given: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Returns the given options under the names that are known here; a name that is known already stays.

    Raises:
        ValueError: if an option is given under two of its names.

    >>> use_own_names({"lr": 0.1, "steps": 5}, ["learning_rate", "steps"])
    {'learning_rate': 0.1, 'steps': 5}

    """
    meaning = {other.replace("-", "_"): name for name in known for other in FURTHER_NAMES.get(name, ())}
    renamed: dict[str, Any] = {}
    for name, value in given.items():
        # A name that is known here keeps its meaning, even if it is a further name of another option elsewhere.
        own_name = name if name in known else meaning.get(name, name)
        # Of two values for one option the later would win without a word.
        if own_name in renamed:
            raise ValueError(f"{name} and {own_name} are two names of one option: give one of them")
        renamed[own_name] = value
    return renamed
