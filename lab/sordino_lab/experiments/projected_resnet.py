"""ProjectedDPSGD against DP-SGD in fine-tuning.

source     001, F5.7, F5.8, lines 1033–1049
setting    ResNet-18 with GroupNorm fine-tuned, C = 1 and 5
reduced    2,000 generated digits with wavelet features in place of ResNet-18 on CIFAR-10 (6 minutes an epoch)
"""

from __future__ import annotations

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.thesis import cifar
from sordino_lab.training_curves import against, higher, learning, no_guarantee
from sordino_lab.workbench import Workbench


def plans(bench: Workbench) -> list[CurvePlan]:
    """Every curve."""
    if bench.size.value in ("tiny", "quick"):
        small = {
            "features": "scattering",
            "normalise": None,
            "ema": 0.0,
            "noise_multiplier": 1.1,
            "learning_rate": 0.5,
            "momentum": 0.0,
        }
        return [
            CurvePlan(
                label=f"{name}, C = {bound:g}",
                method=method,
                recipe="digits",
                batch=100,
                records=2_000,
                epochs=6,
                seeds=2,
                evaluations=4,
                variant=k,
                given={**small, "bound": bound, **words},
            )
            for k, bound in enumerate((1.0, 5.0))
            for name, method, words in (("DP-SGD", "dpsgd", {}), ("projected", "projected", {"query": "projected"}))
        ]
    return [cifar(bench, way, 0.1, bound, model="resnet18") for bound in (1.0, 5.0) for way in ("DP-SGD", "projected")]


def run(bench: Workbench) -> Outcome:
    """Train, draw, judge."""
    trained = bench.trained(plans(bench))
    return Outcome(
        learning(trained, "fine-tuning"),
        against(trained, {}, ""),
        [
            higher(
                bench,
                trained[0],
                trained[1],
                "with a small bound the courses are nearly identical",
                "001:1033",
                less=1.0,
            )
        ],
        [*[], *no_guarantee(trained)],
        bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="projected-resnet",
    source="001",
    figure="F5.7, F5.8",
    lines="1033–1049",
    title="ProjectedDPSGD in fine-tuning",
    shows="on a pretrained network the two methods are nearly the same",
    setting="ResNet-18 with GroupNorm fine-tuned, C = 1 and 5",
    reduced="2,000 generated digits with wavelet features in place of ResNet-18 on CIFAR-10 (6 minutes an epoch)",
    middle="10,000 records, 10 epochs, 2 seeds",
    differs="random weights in place of pretrained ones",
    nouns=("Projected", "resnet18"),
    terms="vortrainiertes Netzwerk, Finetuning",
    seconds=25,
    run=run,
    plans=plans,
)
