"""What sorted lots look like from inside: cosines, gradient lengths, dominant classes and outliers, of source 001.

These figures follow single trainings step by step, by the diagnostics that `--diagnose` keeps.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from sordino.app import data
from sordino.app.report.panels import Boxes, Panel, Series
from sordino.rng.streams import Rng
from sordino.sampling.poisson import Poisson
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Figure, Finding, Outcome
from sordino_lab.thesis_plans import label_of, plan_cifar
from sordino_lab.training_curves import TrainedCurve, note_no_guarantee
from sordino_lab.workbench import Workbench

COSINE_SETTINGS = ((0.1, 9.5), (0.01, 10.0))
VERY_SIMILAR = 0.5
"""A cosine from which on two updates count as very similar."""
NEARLY_ALL = 0.9
"""Share of the lots that counts as nearly all of them."""
WITHOUT_NOISE: dict[str, Any] = {"noise_multiplier": 0.0}
Shapes = dict[tuple[str, int], NDArray[np.float64]]
"""Mean cosine at each place in the epoch, by label and by early (0) or late (1)."""


def plan_cosines(bench: Workbench) -> list[CurvePlan]:
    """Returns the plans whose update cosines are diagnosed: sorted lots and DP-SGD at both settings, first without
    noise, then with it, and the median bound of figure A.4.
    """
    some = COSINE_SETTINGS[:1] if bench.is_tiny else COSINE_SETTINGS
    found = [
        plan_cifar(bench, way, rate, bound, diagnose="cosines", **given)
        for given in (WITHOUT_NOISE, dict[str, Any]())
        for rate, bound in some
        for way in ("DP-SGD", "sorted")
    ]
    # Figure A.4: the median of the lot as a bound, capped at 9.5.
    rate, bound = COSINE_SETTINGS[0]
    return [*found, plan_cifar(bench, "sorted, median", rate, bound, diagnose="cosines", **WITHOUT_NOISE)]


def draw_update_cosine(bench: Workbench) -> Outcome:
    """Draws a diagnostic of sorted lots: the cosine of consecutive updates against the place in the epoch, early and
    late in the run.
    """
    # Curves without noise show the shape; those with noise show that it drowns there.
    trained = bench.train(plan_cosines(bench))
    quiet = [one for one in trained if one.plan.given.get("noise_multiplier") == 0.0]
    noisy = [one for one in trained if one not in quiet]
    shape: Shapes = {}
    panels = [_draw_cosines(f"{one.plan.label}, no noise", _draw_thirds(one, shape)) for one in quiet]
    loud: Shapes = {}
    drawn = [replace(_draw_thirds(one, loud)[1], label=one.plan.label, variant=k) for k, one in enumerate(noisy)]
    panels.append(_draw_cosines("the same with σ = 1.1, last third", drawn))
    # The shape of a late sorted epoch: a bathtub has high ends and a low middle.
    late = shape.get(("sorted, lr 0.1", 1), np.zeros(3))
    edge, third = max(1, len(late) // 10), max(1, len(late) // 3)
    begins, ends = float(np.nanmean(late[:edge])), float(np.nanmean(late[-edge:]))
    opposed = float(np.mean(late[third : 2 * third] < 0))
    # How many of the cosines of the first epochs of random lots are above 0.
    early = {
        one.plan.label: _share_above_zero(one)
        for one in quiet
        if one.plan.label in ("DP-SGD, lr 0.1", "DP-SGD, lr 0.01")
    }
    small, large = early.get("DP-SGD, lr 0.01"), early.get("DP-SGD, lr 0.1")
    most = max(float(np.nanmax(np.abs(one))) for one in loud.values())
    return Outcome(
        panels,
        findings=[
            Finding(
                "in the later epochs a kind of “bathtub curve” appears, with very similar update steps at the "
                "beginning and at the end of the epoch; in the middle of the epochs nearly all update steps still "
                "contradict each other",
                "001:583",
                bench.judge(min(begins, ends) > VERY_SIMILAR and opposed >= NEARLY_ALL),
                f"before noise the mean cosine is {begins:.2f} in the first tenth and {ends:.2f} in the last tenth of a "
                f"sorted epoch, and below 0 at {100 * opposed:.0f} % of the lots of its middle third",
            ),
            Finding(
                "[at learning rate 0.01] the values in the first epochs are mostly above 0; at learning rate 0.1 "
                "the values of the first epochs are rather below 0",
                "001:590",
                None if small is None or large is None else bench.judge(small > 0.5 > large),
                f"{100 * (small or 0):.0f} and {100 * (large or 0):.0f} % of the cosines of DP-SGD's first epochs "
                f"are above 0, before noise",
            ),
        ],
        notes=[
            "The source draws cosines all the way from −1 to 1. Those of released updates cannot be: noise in so "
            f"many dimensions makes any two of them all but orthogonal (at most {most:.3f} in the mean here). So its "
            "curves are of updates before noise; ours are of runs that clip and add none.",
            *note_no_guarantee(trained),
        ],
        commands=bench.commands(plan_cosines(bench)),
    )


def _draw_thirds(one: TrainedCurve, shape: Shapes) -> list[Series]:
    """Returns a diagnostic of sorted lots: mean and spread of the update cosines in the first and the last third of the
    epochs, which are added to `shape`.
    """
    # Steps are put in rows by epoch, so that a place in the epoch is a column.
    values = one.diagnostic("cosines")  # (seeds, steps)
    lots = max(1, round(values.shape[1] / max(1.0, one.runs[0].rows[-1]["epoch"])))
    epochs = values.shape[1] // lots
    by = values[:, : epochs * lots].reshape(len(values), epochs, lots) if epochs else values[:, None, :]
    # Early and late epochs differ, so they are averaged apart.
    third = max(1, by.shape[1] // 3)
    lines = []
    for k, (name, part) in enumerate((("first third of the epochs", by[:, :third]), ("last third", by[:, -third:]))):
        seen = np.where(np.isnan(part).all(axis=(0, 1)), 0.0, part)  # the first step has no step before it
        middle, spread = np.nanmean(seen, axis=(0, 1)), np.nanstd(seen, axis=(0, 1))
        lines.append(
            Series(
                name,
                range(1, by.shape[2] + 1),
                middle,
                low=middle - spread,
                high=middle + spread,
                method=one.plan.method,
                variant=k,
                hollow=one.hollow,
            )
        )
        shape[one.plan.label, k] = middle
    return lines


_FIRST_EPOCHS = 3
"""Epochs that count as the first ones."""


def _share_above_zero(one: TrainedCurve) -> float:
    """Returns, as a diagnostic beside sorted lots, which part of the update cosines of the first epochs is above 0."""
    values = one.diagnostic("cosines")
    lots = max(1, round(values.shape[1] / max(1.0, one.runs[0].rows[-1]["epoch"])))
    first = values[:, : _FIRST_EPOCHS * lots]
    # The first step has no step before it, so its cosine is nan and does not count.
    return float(np.mean(first[~np.isnan(first)] > 0)) if np.isfinite(first).any() else 0.0


def _draw_cosines(title: str, lines: list[Series]) -> Panel:
    return Panel(title, "lot within the epoch", "cosine with the update before", lines, ylim=(-1, 1))


CRASH_RATES = (0.01, 0.1, 1.0)
_SORTED_LABELS = tuple(label_of("sorted", rate) for rate in CRASH_RATES)
_DIVERSE_LABELS = tuple(label_of("class-diverse", rate) for rate in CRASH_RATES[1:])
_ONE_CLASS = 0.9
"""Share of its dominant class from which on a lot counts as one of a single class."""


def plan_crash(bench: Workbench) -> list[CurvePlan]:
    """Returns the plans that diagnose the crash of sorted lots: plain SGD with them at three rates, with class-diverse
    lots at two, and with random ones at one.
    """
    # Plain SGD, because the crash is of the order of the lots and not of the noise.
    looks: dict[str, Any] = {"diagnose": "cosines,lengths,classes", "non_private": True}
    some = CRASH_RATES[:1] if bench.is_tiny else CRASH_RATES
    found = [plan_cifar(bench, "sorted", rate, 1.0, **looks) for rate in some]
    found += [plan_cifar(bench, "class-diverse", rate, 1.0, **looks) for rate in some[1:]]
    return [*found, plan_cifar(bench, "DP-SGD", 0.1, 1.0, **looks)]


def draw_crash(bench: Workbench) -> Outcome:
    """Draws the diagnostics of sorted lots in plain SGD up to its crash: loss, gradient lengths, dominant classes and
    cosines.
    """
    trained = bench.train(plan_crash(bench))
    # For each run: its loss, the median gradient length of each lot, and its dominant class.
    curves, lengths, shares, ended = [], [], [], {}
    for one in trained:
        series = one.series("test_loss")
        name = "random" if one.plan.method == "dpsgd" else one.plan.label
        curves.append(
            Series(
                name + (": not finite" if one.diverged else ""),
                series.x,
                series.y,
                method="sgd" if name == "random" else one.plan.method,
                variant=one.plan.variant,
                hollow="no noise",
            )
        )
        # A run that crashed at once may have no diagnostics; its lines are then empty, and its share counts as zero.
        boxes, classes = one.diagnostic("lengths")[0], one.diagnostic("classes")[0]
        ended[name] = one.diverged
        style: dict[str, Any] = {"method": curves[-1].method, "variant": one.plan.variant, "hollow": "no noise"}
        lengths.append(Series(name, range(1, len(boxes) + 1), boxes[:, 2] if len(boxes) else [], **style))
        share = classes[:, 1] if len(classes) else np.zeros(0)
        shares.append(
            (
                name,
                Series(name, range(1, len(share) + 1), 100 * share, **style),
                float(np.nanmean(share)) if len(share) else 0.0,
            )
        )
    # Sorted lots are compared with what chance makes of lots of the same size.
    by_name = {name: mean for name, _, mean in shares}
    # Of the lots of the run that crashes, the share that consists of one class almost alone.
    share_of_lots = next((np.asarray(line.y) for name, line, _ in shares if name == "sorted, lr 0.1"), np.zeros(0))
    of_one_class = float(np.mean(share_of_lots >= 100 * _ONE_CLASS)) if len(share_of_lots) else None
    # A run that ended with numbers that are not finite has crashed.
    crashed = [name for name, why in ended.items() if why]
    diverse = [name for name in crashed if name.startswith("class-diverse")]
    # A share of exactly one in ten is expected of no single lot, so the mean over all lots is compared with it.
    random_shares = measure_random_shares(bench)
    unequal = float(np.abs(random_shares.mean(axis=0) - 100 / random_shares.shape[1]).max())
    only_the_smallest_rate_survives = set(crashed) & set(_SORTED_LABELS) == {"sorted, lr 0.1", "sorted, lr 1"}
    return Outcome(
        [
            Panel("SGD with sorted lots: loss", "epochs", "test loss", curves, ylog=True),
            Panel("median gradient length of each lot", "lots", "gradient length", lengths, ylog=True),
            Panel("share of the dominant class", "lots", "share of the lot, %", [line for _, line, _ in shares]),
            _draw_random_shares(random_shares),
            *_draw_last_epochs(next((one for one in trained if one.plan.label == "sorted, lr 0.1"), trained[0])),
        ],
        findings=[
            Finding(
                "SGD with sorting crashes regularly even at the smaller learning rate 0.1; training succeeded only with "
                "learning rate 0.01",
                "001:600",
                bench.judge(only_the_smallest_rate_survives) if set(_SORTED_LABELS) <= set(ended) else None,
                f"not finite here: {', '.join(crashed) or 'none'}",
            ),
            Finding(
                "mostly batches of one class are chosen, interrupted again and again by batches that are filled with more "
                "different classes",
                "001:618",
                None if of_one_class is None else bench.judge(0.5 < of_one_class < 1),
                f"{100 * (of_one_class or 0):.0f} % of the sorted lots have at least {100 * _ONE_CLASS:.0f} % of "
                f"one class; in the mean the dominant class has {100 * by_name.get('sorted, lr 0.1', 0.0):.0f} % of a "
                f"sorted lot and {100 * by_name.get('random', 0.0):.0f} % of a random one",
            ),
            Finding(
                "in SGD, where the batches are drawn entirely at random, the batch is filled uniformly",
                "001:629",
                bench.judge(unequal < 1.0),
                f"over {len(random_shares)} random lots the mean share of no class is more than {unequal:.2f} points from "
                f"{100 / random_shares.shape[1]:g} %",
            ),
            Finding(
                "[with artificial diversity] SGD still crashes regularly at the high learning rates of 1.0 and 0.1",
                "001:635",
                bench.judge(len(diverse) == len(_DIVERSE_LABELS)) if set(_DIVERSE_LABELS) <= set(ended) else None,
                f"not finite here: {', '.join(diverse) or 'none'}",
            ),
        ],
        commands=bench.commands(plan_crash(bench)),
        numbers={"ended": ended, "dominant": by_name},
    )


CIFAR_CLASSES = ("plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def measure_random_shares(bench: Workbench) -> NDArray[np.float64]:
    """Returns, as a diagnostic beside sorted lots, the share of every class in each lot of an epoch of random lots, in
    percent: (lots, classes).

    It depends on labels and sampler alone, so nothing is trained for it.
    """
    loaded = data.digits(train=300, test=10) if bench.is_tiny else data.load("cifar10")
    labels = loaded.train.labels.numpy()
    lots = bench.pick(3, 250, 250, 250)
    shares = []
    for number, draw in enumerate(Poisson(min(1.0, 200 / len(labels))).draws(len(labels), Rng.from_seed(0), 0)):
        if number >= lots:
            break
        # Lots are drawn by the sampler itself, and only their labels are counted.
        counts = np.bincount(labels[np.asarray(draw.indices)], minlength=10)
        shares.append(100 * counts / max(1, counts.sum()))
    return np.asarray(shares)


def _draw_random_shares(shares: NDArray[np.float64]) -> Panel:
    """Returns figure 4.12, a diagnostic of random lots beside sorted ones: box plots over lots of the share of every
    class.
    """
    # Minimum, quartiles and maximum over lots, for each class.
    five = np.quantile(shares, [0.0, 0.25, 0.5, 0.75, 1.0], axis=0).T
    boxes = Boxes("minimum, quartiles, maximum over random lots", range(len(five)), [tuple(row) for row in five], "sgd")
    return Panel(
        "random lots: share of every class", "class", "share of the lot, %", boxes=[boxes], xticks=CIFAR_CLASSES
    )


def _draw_last_epochs(one: TrainedCurve) -> list[Panel]:
    """Returns the diagnostics of sorted lots that figures 4.10 and 4.11 draw of the last two epochs of a run, lot by
    lot.

    These are the gradient length, the dominant class, its share, and the cosine with the update before.
    The source draws the mean length of a lot; the diagnostics keep the median.
    """
    # The first seed: lots of several seeds have nothing to do with each other.
    boxes, classes, cosines = (one.diagnostic(name)[0] for name in ("lengths", "classes", "cosines"))
    # Lots in an epoch follow from the epochs that the run says it took.
    in_an_epoch = (
        max(1, round(len(boxes) / max(1.0, one.runs[0].rows[-1]["epoch"]))) if one.runs[0].rows else len(boxes)
    )
    begin = max(0, len(boxes) - 2 * in_an_epoch)
    lots = range(begin + 1, len(boxes) + 1)
    title, hollow = f"{one.plan.label}, last two epochs", "no noise"

    def draw(what: str, values: Any, ylabel: str, *, points: bool = False, **axes: Any) -> Panel:
        line = Series(one.plan.label, lots, values, method=one.plan.method, points=points, hollow=hollow)
        return Panel(f"{title}: {what}", "lots", ylabel, [line], **axes)

    # A run that crashed at once has nothing to draw.
    if not len(boxes) or not len(classes) or not len(cosines):
        return []
    return [
        draw("lengths", boxes[begin:, 2], "median gradient length", ylog=True),
        draw("dominant share", 100 * classes[begin:, 1], "share of the lot, %", ylim=(0, 100)),
        draw("cosine", cosines[begin:], "cosine with the update before", points=True, ylim=(-1, 1)),
        draw("dominant class", classes[begin:, 0], "class", points=True, ylim=(-0.5, 9.5)),
    ]


LENGTH_SAMPLERS: dict[str, dict[str, Any]] = {
    "topk": {"sampler": "sorted-top-k"},
    "no sorting": {},
    "quantilesort": {"sampler": "sorted-quantile"},
}
_NARROW = 0.1
"""Quartile range over median up to which the gradient lengths of a lot vary very little."""
_NEARLY_ALWAYS = 0.9
"""Share of the epochs in which lengths must rise for them to rise with every epoch."""
LENGTH_COLOURS = {"topk": "sorted", "no sorting": "sgd", "quantilesort": "quantile-sorted"}


def plan_lengths(bench: Workbench) -> list[CurvePlan]:
    """Returns the plans that diagnose gradient lengths: plain SGD with each way to fill a lot, sorted or random."""
    return [
        plan_cifar(bench, "DP-SGD", 0.01, 1.0, diagnose="lengths", non_private=True, **words)
        for words in LENGTH_SAMPLERS.values()
    ]


def draw_lengths(bench: Workbench) -> Outcome:
    """Draws a diagnostic of sorted lots: box plots of the gradient lengths of the lots over the epochs, for topk, none
    and quantilesort.
    """
    # One panel for each way to fill a lot, and what the source says of the last epoch.
    panels, width, fall, rises = [], {}, {}, {}
    for name, one in zip(LENGTH_SAMPLERS, bench.train(plan_lengths(bench)), strict=True):
        boxes = one.diagnostic("lengths")[0]  # (steps, 5)
        lots = max(1, round(len(boxes) / max(1.0, one.runs[0].rows[-1]["epoch"])))
        last = boxes[-lots:] if len(boxes) >= lots else boxes
        # Sixty boxes are as many as can be told apart.
        every = boxes[:: max(1, len(boxes) // 60)]
        at = np.arange(len(boxes))[:: max(1, len(boxes) // 60)] / lots
        panels.append(
            Panel(
                f"SGD, {name}",
                "epochs",
                "gradient length",
                boxes=[
                    Boxes(
                        "minimum, quartiles, maximum of a lot",
                        at,
                        [tuple(row) for row in every],
                        LENGTH_COLOURS[name],
                        hollow="no noise",
                    )
                ],
            )
        )
        # What the source says: how wide a lot of the last epoch is, how far lengths fall in it, and how often the mean
        # length of an epoch is above that of the epoch before.
        width[name] = float(np.nanmean((last[:, 3] - last[:, 1]) / np.maximum(last[:, 2], 1e-12)))
        fall[name] = float(last[0, 2] / max(last[-1, 2], 1e-12))
        means = [float(np.nanmean(boxes[k : k + lots, 2])) for k in range(0, max(1, len(boxes) - lots + 1), lots)]
        rises[name] = float(np.mean([later > earlier for earlier, later in pairwise(means)] or [False]))
    return Outcome(
        panels,
        findings=[
            Finding(
                "the box plots are drawn very small, which means that the variation of the gradient lengths within a batch "
                "is very low",
                "001:753",
                bench.judge(width["topk"] < _NARROW and width["topk"] < width["no sorting"]),
                f"quartile range over median in the last epoch: {width['topk']:.2f} sorted, {width['no sorting']:.2f} "
                f"not, {width['quantilesort']:.2f} by quantiles; "
                f"the median falls by a factor of {fall['topk']:.1f} through the sorted epoch",
            ),
            Finding(
                "with sorting as well as without the gradient lengths of the batches rise with every epoch",
                "001:753",
                bench.judge(min(rises["topk"], rises["no sorting"]) >= _NEARLY_ALWAYS),
                f"the mean of the medians is above that of the epoch before in {100 * rises['topk']:.0f} % of the epochs "
                f"with sorting and in {100 * rises['no sorting']:.0f} % without",
            ),
        ],
        commands=bench.commands(plan_lengths(bench)),
    )


def draw_outliers(bench: Workbench) -> Outcome:
    """Draws a diagnostic of outliers: how many of the longest tenth of the gradients were there an epoch before, for
    sorted and for random lots.

    A softmax layer has its gradient lengths in closed form.
    """
    # A softmax layer is trained by hand, so that all lengths are known at every epoch.
    records, epochs, size = bench.pick(300, 3_000, 20_000, 60_000), bench.pick(3, 10, 20, 30), 100
    loaded = data.digits(train=records, test=10) if bench.is_tiny else data.load("mnist")
    x = loaded.train.to_dataset().tensors[0][:records].flatten(1)
    y = loaded.train.to_dataset().tensors[1][:records]
    # A bias adds an input of 1 to the length of every record's input.
    input_lengths = torch.sqrt(x.square().sum(1) + 1)
    lines, overlap = [], {}
    for k, (name, method, ranked) in enumerate((("sorted lots", "sorted", True), ("random lots", "sgd", False))):
        rng = np.random.default_rng(0)
        weight, bias = torch.zeros(10, x.shape[1]), torch.zeros(10)
        tops = []
        for _ in range(epochs):
            left = np.arange(records)
            # The longest tenth at the beginning of each epoch.
            lengths = _softmax_gradient_lengths(x, y, input_lengths, weight, bias)
            tops.append(set(np.argsort(-lengths)[: records // 10].tolist()))
            while len(left):
                # Lengths of all records cost less than a copy of the pixels of those that are left.
                order = (
                    np.argsort(-_softmax_gradient_lengths(x, y, input_lengths, weight, bias)[left])
                    if ranked
                    else rng.permutation(len(left))
                )
                lot, left = left[order[:size]], left[order[size:]]
                # A plain step of gradient descent on the lot.
                residual = F.softmax(x[lot] @ weight.T + bias, 1) - F.one_hot(y[lot], 10)
                weight -= 0.05 * residual.T @ x[lot] / len(lot)
                bias -= 0.05 * residual.mean(0)
        # How many of the longest tenth were there an epoch before; one in ten by chance.
        shared = [100 * len(a & b) / max(1, len(a)) for a, b in pairwise(tops)]
        overlap[name] = float(np.mean(shared))
        lines.append(Series(name, range(2, epochs + 1), shared, method=method, variant=k, hollow="no noise"))
    lines.append(Series("by chance", [2, epochs], [10, 10], method="theory", variant=3))
    return Outcome(
        [
            Panel(
                "longest tenth of the gradients, from epoch to epoch",
                "epoch",
                "shared with the epoch before, %",
                lines,
                ylim=(0, 100),
            )
        ],
        notes=[
            "The source only asks how far the outliers of one epoch are those of later ones too (001:835). Here "
            f"{overlap['sorted lots']:.0f} % of the longest tenth were there an epoch before, with random lots "
            f"{overlap['random lots']:.0f} %; 10 % by chance.",
            "Ranking less often is `refresh=k`; it costs less time and is not private either.",
        ],
    )


def _softmax_gradient_lengths(
    x: torch.Tensor, y: torch.Tensor, input_lengths: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> NDArray[np.float64]:
    """Returns the gradient lengths for the diagnostic of outliers, ‖p − e_y‖ · √(‖x‖² + 1) for every record."""
    residual = F.softmax(x @ weight.T + bias, 1) - F.one_hot(y, 10)
    return np.asarray((residual.norm(dim=1) * input_lengths).numpy())


FIGURES = {
    "update-cosine": Figure(draw_update_cosine, plan_cosines),
    "sorted-sgd-crash": Figure(draw_crash, plan_crash),
    "gradient-lengths": Figure(draw_lengths, plan_lengths),
    "outlook-outliers": Figure(draw_outliers),
}
