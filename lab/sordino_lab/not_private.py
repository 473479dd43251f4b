"""Called private, and is not: what a source says or prints an ε beside, a witness against it, and the number."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache

from sordino.accounting import PLD, amplified, analytic_gaussian, gaussian_epsilon, shuffle_lower_bound
from sordino.events import Gaussian, Laplace, Poisson, Repeat
from sordino_lab import store
from sordino_lab.slides import IGNORED, INSIDE

DELTA = 1e-5


@dataclass(frozen=True)
class Entry:
    """One thing that is called private."""

    title: str
    says: str
    line: str
    witness: str
    number: str


@cache
def entries() -> tuple[Entry, ...]:
    """All of them; the numbers are computed here."""
    thesis = PLD().epsilon(Repeat(Poisson(1 / 240, Gaussian(1.1)), 7200), DELTA)
    laplace = PLD().epsilon(Repeat(Laplace(10.0), 1000), 1e-3)
    one = gaussian_epsilon(1 / 1.1, DELTA)
    shuffled = shuffle_lower_bound(1.1, 240, 30, DELTA)
    return (
        Entry(
            "Sorted lots at ε = 1.769",
            "tables and figures of SortedDPSGD carry ε = 1.769 (MNIST) and 1.729 (CIFAR-10); the text says that topk "
            "is not DP",
            "001:400–423",
            "one record more, with the longest gradient, pushes another out of the lot and out of every later one: "
            "which records "
            "take part tells about all of them, whatever noise is added to their sum",
            f"no ε. The printed one is DP-SGD's on Poisson lots by Rényi accounting; of that, {thesis:.3f} is "
            "certified",
        ),
        Entry(
            "The lookahead of ProjectedDPSGD",
            "ε = 1.729 stands under its tables; noise is added once, to the final update",
            "001:979, 1008",
            "losses C|θ − k| with kinks between two virtual points: one record moves the virtual step, and every "
            "other record's "
            "second gradient flips",
            "with 200 records and ρ = 2 the sum moves by 200·C against noise of 1.1·C. NoisyLookahead adds noise on "
            "the way",
        ),
        Entry(
            "The batch's median as a bound",
            "the clip bound is the median, or the minimum, of the lot's own lengths",
            "001:402, 646",
            "two lots that differ in one record have two bounds, so every other record's share changes, and so does "
            "the noise",
            "unbounded: nothing limits how far the sum moves. AdaptiveQuantile follows a quantile with noise of its "
            "own",
        ),
        Entry(
            "Shuffled batches at Poisson's ε",
            "batches of an epoch are disjoint, and the ε beside them is that of Poisson lots",
            "001:398–409",
            "in a shuffled pass every record takes part exactly once, so the attacker knows that it was there",
            f"30 passes of 240 batches at σ = 1.1: Poisson's ε is {thesis:.2f}, and no accountant can say less than "
            f"{shuffled:.1f} "
            "for shuffled ones",
        ),
        Entry(
            "A penalty that was ignored",
            "λ/2‖θ‖² added to the loss before clipping keeps ~97 % for every λ up to 10",
            "000:363",
            "per-sample gradients taken by hooks at the layers do not see a term that does not pass through them: "
            "after 20 steps "
            "the parameters are the same for λ = 0 and λ = 5. It is private all the same, and it is not the method",
            _penalty(),
        ),
        Entry(
            "Advanced composition without its drift",
            "k steps are (ε√(2k ln 1/δ), δ)-DP",
            "003:489, 517",
            "Laplace noise itself: the privacy loss of a release has a positive mean, which k releases add up",
            f"at ε = 0.1, k = 1000, δ = 1e-3 it promises 11.75; Laplace noise really costs {laplace:.2f}",
        ),
        Entry(
            "Sampling divides ε by 1/q",
            "querying a fraction q reduces ε to qε, and T queries cost qTε",
            "004:188–206",
            "a release that tells for sure with probability q still tells a q-th of the time: ε' = log(1 + q(e^ε − 1))",
            f"at q = 0.01 and ε = {one:.2f}: qε = {0.01 * one:.3f}, the truth {amplified(one, DELTA, 0.01)[0]:.3f}",
        ),
        Entry(
            "The analytic Gaussian mechanism, scaled by 1/ε",
            "the optimal noise is σ = (√(2+u) + √u)·Δ/ε, u the argmin of an expression without δ",
            "003:65–67",
            "Balle and Wang (2018) divide by 2√ε, and u is where their expression meets δ: above ε = 4 the printed noise "
            "is less than the least that suffices",
            _analytic(),
        ),
        Entry(
            "Private for any σ > 0",
            "“(ε, δ)-differentially private for any σ > 0”, in the theorem about L2 inside the clip",
            "000:224",
            "the theorem is for any δ > 0; with σ = 0.1 the sum of a lot is nearly as it is",
            f"σ = 0.1 at the slides' rate 0.02 over 750 steps: no accountant can say less than {_little_noise():.0f}",
        ),
    )


def _analytic() -> str:
    """Returns what the printed scaling of the analytic Gaussian mechanism really costs at ε = 8, with the right u."""
    asked = 8.0
    least = analytic_gaussian(asked, DELTA)
    printed = least * 2 / math.sqrt(asked)
    return (
        f"at ε = {asked:g}, δ = 1e-5 the least noise is {least:.3f}; scaled as printed it is {printed:.3f}, "
        f"which costs ε = {gaussian_epsilon(1 / printed, DELTA):.1f}"
    )


def _little_noise() -> float:
    return PLD().bounds(Repeat(Poisson(0.02, Gaussian(0.1)), 750), DELTA)[0]


def _penalty() -> str:
    """From the results that come with the package."""
    path = store.SHIPPED / "wd-mnist-ignored.json"
    if not path.is_file():
        return "not run yet: `sordino lab run wd-mnist-ignored`"
    kept = json.loads(path.read_text("utf-8"))
    inside = {float(value): accuracy for value, accuracy in kept["numbers"][INSIDE].items()}
    ignored = kept["numbers"][IGNORED].values()
    return (
        f"exact L2 inside the clip falls from {inside[min(inside)]:.1f} % to {inside[max(inside)]:.1f} % at λ = "
        f"{max(inside):g}, a penalty that is ignored stays at {min(ignored):.1f} %: wd-mnist-ignored at the size "
        f"{kept['size']}"
    )
