"""Sorted lots in fine-tuning: a linear head on frozen features.

source     001, outlook f), lines 836
setting    sorted lots where training begins near the end: a linear head on frozen features
reduced    2,000 generated digits with wavelet features in place of a pretrained ResNet
"""

from __future__ import annotations

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.training_curves import against, higher, learning, no_guarantee
from sordino_lab.workbench import Workbench


def plans(bench: Workbench) -> list[CurvePlan]:
    """Every curve."""
    return [
        CurvePlan(
            label=name,
            method=method,
            recipe="digits",
            batch=100,
            records=bench.pick(None, 2_000, 10_000, 10_000),
            epochs=bench.pick(1, 6, 15, 30),
            seeds=bench.pick(1, 2, 3, 3),
            evaluations=4,
            variant=k,
            given={
                "features": "scattering",
                "normalise": None,
                "ema": 0.0,
                "noise_multiplier": 1.1,
                "learning_rate": 0.5,
                **words,
            },
        )
        for k, (name, method, words) in enumerate(
            (("DP-SGD", "dpsgd", {}), ("sorted", "sorted", {"sampler": "sorted-top-k"}))
        )
    ]


def run(bench: Workbench) -> Outcome:
    """Train, draw, judge."""
    trained = bench.trained(plans(bench))
    return Outcome(
        learning(trained, "fine-tuning"),
        against(trained, {}, ""),
        [higher(bench, trained[1], trained[0], "SortedDPSGD could do better in fine-tuning", "001:836")],
        [*[], *no_guarantee(trained)],
        bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="outlook-fine-tuning",
    source="001",
    figure="outlook f)",
    lines="836",
    title="Outlook: sorted fine-tuning",
    shows="on frozen features sorting has no outliers to find first",
    setting="sorted lots where training begins near the end: a linear head on frozen features",
    reduced="2,000 generated digits with wavelet features in place of a pretrained ResNet",
    middle="10,000 generated digits with wavelet features in place of a pretrained ResNet, 15 epochs",
    nouns=("Sorted", "Scattering"),
    terms="Finetuning",
    seconds=25,
    run=run,
    plans=plans,
)
