"""Random events of every kind, each with an oracle that shares no code with the accountants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sordino import events as E
from sordino.accounting import PLD
from tests.accounting import oracle as O
from tests.accounting.oracle import Answer

Truth = Callable[[float], tuple[Answer, Answer]]
"""From ε to δ: what an upper bound must reach, and what a lower bound must not exceed."""


@dataclass(frozen=True)
class Setting:
    """An event, the relation it is asked about, and what is known about it by other means."""

    kind: str
    event: E.Event
    truth: Truth
    relation: E.Relation | None = None


@dataclass(frozen=True)
class Outcome:
    """One comparison: how far apart our bounds are, and whether either of them is on the wrong side of the truth."""

    kind: str
    event: str
    asked: str
    low: float
    high: float
    gap: float
    wrong: str


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(10 ** rng.uniform(math.log10(low), math.log10(high)))


def same(parts: O.Parts) -> Truth:
    """Returns the truth of a composition that both bounds have to enclose."""

    def truth(epsilon: float) -> tuple[Answer, Answer]:
        answer = O.delta_of(parts, epsilon)
        return answer, answer

    return truth


def floor(parts: O.Parts) -> Truth:
    """Returns the truth of a mechanism that the event allows: the upper bound must reach it; the lower bound is free."""
    return lambda epsilon: (O.delta_of(parts, epsilon), Answer(1.0, 0.0))


# --- single phases: an event and what the oracle makes of it -----------------------------------------------------------


def plain_phase(rng: np.random.Generator) -> tuple[E.Event, O.Release]:
    """Returns a release on all of the data."""
    kind = int(rng.integers(6))
    if kind == 0:
        sigma = log_uniform(rng, 0.15, 50)
        return E.Gaussian(sigma), O.Normal(1 / sigma)
    if kind == 1:
        scale = log_uniform(rng, 0.5, 50)
        return E.Laplace(scale), O.LaplaceNoise(1 / scale)
    if kind == 2:
        sigma = log_uniform(rng, 0.7, 15)
        return E.DiscreteGaussian(sigma), O.discrete_normal(sigma)
    if kind == 3:
        flip, buckets = float(rng.uniform(0.2, 0.95)), int(rng.integers(2, 7))
        return E.RandomisedResponse(flip, buckets), O.response(flip, buckets)
    if kind == 4:
        weight, sigmas = float(rng.uniform(0.1, 0.9)), [log_uniform(rng, 0.7, 20) for _ in range(2)]
        weights = (weight, 1 - weight)
        event = E.Mixture(weights, (E.Gaussian(sigmas[0]), E.Gaussian(sigmas[1])))
        return event, O.Chosen(weights, (O.Normal(1 / sigmas[0]), O.Normal(1 / sigmas[1])))
    size, sigma = int(rng.integers(2, 6)), log_uniform(rng, 3, 60)
    return E.Group(E.Gaussian(sigma), size), O.Normal(size / sigma)


def sampled_phase(rng: np.random.Generator, *, most: int = 3000) -> tuple[E.Event, O.Release, int]:
    """Returns a release on a Poisson draw, and how often it happens."""
    kind = int(rng.integers(9))
    rate, count = log_uniform(rng, 1e-3, 0.5), int(log_uniform(rng, 12, most))
    if kind <= 3:
        sigma = log_uniform(rng, 0.35, 12)
        return E.Poisson(rate, E.Gaussian(sigma)), O.sampled_normal(rate, 1 / sigma), count
    if kind == 4:
        scale = log_uniform(rng, 0.4, 10)
        return E.Poisson(rate, E.Laplace(scale)), O.SampledLaplace(rate, 1 / scale), min(count, 300)
    if kind == 5:
        sigmas = [log_uniform(rng, 0.6, 10) for _ in range(2)]
        mu = math.hypot(1 / sigmas[0], 1 / sigmas[1])
        event = E.Poisson(rate, E.Together(E.Gaussian(sigmas[0]), E.Gaussian(sigmas[1])))
        return event, O.sampled_normal(rate, mu), count
    if kind == 6:
        weight, sigmas = float(rng.uniform(0.1, 0.9)), [log_uniform(rng, 0.6, 10) for _ in range(2)]
        weights = (weight, 1 - weight)
        event = E.Poisson(rate, E.Mixture(weights, (E.Gaussian(sigmas[0]), E.Gaussian(sigmas[1]))))
        return event, O.Chosen(weights, tuple(O.sampled_normal(rate, 1 / sigma) for sigma in sigmas)), count
    if kind == 7:
        size, sigma = int(rng.integers(2, 5)), log_uniform(rng, 0.8, 12)
        rate = min(rate, 0.1)
        return (
            E.Group(E.Poisson(rate, E.Gaussian(sigma)), size),
            O.sampled_group(rate, 1 / sigma, size),
            min(count, 500),
        )
    flip, buckets = float(rng.uniform(0.3, 0.9)), int(rng.integers(2, 5))
    event = E.Poisson(rate, E.RandomisedResponse(flip, buckets))
    return event, O.sampled_atoms(rate, O.response(flip, buckets)), count


def repeated(event: E.Event, count: int) -> E.Event:
    """Returns the event so many times; a group is one of repeated releases."""
    if isinstance(event, E.Group) and isinstance(event.event, E.Poisson):
        return E.Group(E.Repeat(event.event, count), event.size)
    return E.Repeat(event, count)


# --- settings by kind --------------------------------------------------------------------------------------------------


def gaussians(rng: np.random.Generator) -> Setting:
    sigmas = [log_uniform(rng, 0.1, 50) for _ in range(int(rng.integers(1, 4)))]
    return Setting(
        "gaussian", E.Together(*map(E.Gaussian, sigmas)), same([(O.Normal(1 / sigma), 1) for sigma in sigmas])
    )


def poisson(rng: np.random.Generator) -> Setting:
    event, release, count = sampled_phase(rng, most=20_000)
    # with a handful of draws that matter the integral of the oracle converges slowly: that is what `one_release` is for
    count = max(count, math.ceil(6 / float(getattr(event, "rate", 0.05))))
    if release.smooth:
        return Setting("poisson", repeated(event, count), same([(release, count)]))
    sigma = log_uniform(rng, 0.5, 8)  # normal noise beside atoms, without which the oracle proves nothing
    return Setting(
        "poisson",
        E.Together(repeated(event, count), E.Gaussian(sigma)),
        same([(release, count), (O.Normal(1 / sigma), 1)]),
    )


def one_release(rng: np.random.Generator) -> Setting:
    rate, sigma, wide = log_uniform(rng, 1e-4, 0.9), log_uniform(rng, 0.2, 5), log_uniform(rng, 0.15, 30)
    event = E.Together(E.Gaussian(wide), E.Poisson(rate, E.Gaussian(sigma)))
    return Setting(
        "one draw beside a gaussian", event, same([(O.Normal(1 / wide), 1), (O.sampled_normal(rate, 1 / sigma), 1)])
    )


def unsampled(rng: np.random.Generator) -> Setting:
    phases = [(*plain_phase(rng), int(log_uniform(rng, 1, 30))) for _ in range(int(rng.integers(1, 4)))]
    sigma = log_uniform(rng, 0.3, 20)
    event = E.Together(E.Gaussian(sigma), *(E.Repeat(event, count) for event, _, count in phases))
    return Setting("plain composed", event, same([(O.Normal(1 / sigma), 1), *((r, n) for _, r, n in phases)]))


def composed(rng: np.random.Generator) -> Setting:
    parts: list[tuple[O.Release, int]] = []
    events: list[E.Event] = []
    for _ in range(int(rng.integers(1, 4))):
        event, release, count = sampled_phase(rng, most=800)
        events.append(repeated(event, count))
        parts.append((release, count))
    for _ in range(int(rng.integers(0, 3))):
        event, release = plain_phase(rng)
        count = int(rng.integers(1, 4))
        events.append(E.Repeat(event, count))
        parts.append((release, count))
    if len(events) == 1 or not any(isinstance(release, O.Normal) for release, _ in parts):
        sigma = log_uniform(rng, 0.2, 20)
        events.append(E.Gaussian(sigma))
        parts.append((O.Normal(1 / sigma), 1))
    return Setting("composed", E.Together(*events), same(parts))


def answers(rng: np.random.Generator) -> Setting:
    parts, events = [], []
    for _ in range(int(rng.integers(1, 3))):
        flip, buckets, count = float(rng.uniform(0.2, 0.95)), int(rng.integers(2, 4)), int(rng.integers(1, 25))
        atoms, event = O.response(flip, buckets), E.RandomisedResponse(flip, buckets)
        if rng.random() < 0.5:
            rate = log_uniform(rng, 0.01, 0.6)
            atoms, event = O.sampled_atoms(rate, atoms), E.Poisson(rate, event)
        parts.append((atoms, count))
        events.append(E.Repeat(event, count))

    def truth(epsilon: float) -> tuple[Answer, Answer]:
        answer = O.exact_lattice_delta(parts, epsilon)
        return answer, answer

    return Setting("answers, enumerated", E.Together(*events), truth)


def two_bins(rng: np.random.Generator) -> Setting:
    sigma, passes, wide = log_uniform(rng, 0.7, 6), int(log_uniform(rng, 1, 12)), log_uniform(rng, 0.7, 20)
    event = E.Together(E.Repeat(E.BallsInBins(2, E.Gaussian(sigma)), passes), E.Gaussian(wide))
    return Setting(
        "balls in two bins, composed", event, same([(O.Allocated(2, 1 / sigma), passes), (O.Normal(1 / wide), 1)])
    )


def many_bins(rng: np.random.Generator) -> Setting:
    bins, sigma = int(log_uniform(rng, 3, 200)), log_uniform(rng, 0.75, 5)

    def truth(epsilon: float) -> tuple[Answer, Answer]:
        return O.many_bins_delta(bins, 1 / sigma, epsilon, 1 << 17)

    return Setting("balls in many bins", E.BallsInBins(bins, E.Gaussian(sigma)), truth)


def answers_in_bins(rng: np.random.Generator) -> Setting:
    bins, flip, passes, wide = (
        int(rng.integers(2, 6)),
        float(rng.uniform(0.3, 0.95)),
        int(rng.integers(1, 8)),
        log_uniform(rng, 0.7, 10),
    )
    event = E.Together(E.Repeat(E.BallsInBins(bins, E.RandomisedResponse(flip)), passes), E.Gaussian(wide))
    atoms = O.allocated_atoms(bins, O.response(flip, 2))
    return Setting("balls in bins, enumerated", event, same([(atoms, passes), (O.Normal(1 / wide), 1)]))


def fixed_size(rng: np.random.Generator) -> Setting:
    total, sigma, count = 10_000, log_uniform(rng, 0.7, 12), int(log_uniform(rng, 12, 1000))
    size = int(log_uniform(rng, 20, 3000))
    event = E.Repeat(E.FixedSize(size, total, E.Gaussian(sigma)), count)
    # All others pull the other way: replacing one moves a sum by two contributions, with probability size/total.
    return Setting("fixed size", event, same([(O.sampled_normal(size / total, 2 / sigma), count)]))


def replaced(rng: np.random.Generator) -> Setting:
    rate, sigma, count = log_uniform(rng, 2e-3, 0.4), log_uniform(rng, 0.8, 10), int(log_uniform(rng, 12, 1000))
    event = E.Repeat(E.Poisson(rate, E.Gaussian(sigma)), count)
    return Setting("poisson, replace-one", event, same([(O.Replaced(rate, 1 / sigma), count)]), E.Relation.REPLACE)


def truncated(rng: np.random.Generator) -> Setting:
    from scipy.stats import binom

    total, rate, sigma, count = (
        5000,
        log_uniform(rng, 5e-3, 0.1),
        log_uniform(rng, 1.0, 8),
        int(log_uniform(rng, 12, 300)),
    )
    most = int(total * rate + float(rng.uniform(1.0, 5.0)) * math.sqrt(total * rate))
    cut = float(binom.sf(most - 1, total - 1, rate))
    kept = float(binom.sf(most, total, rate)) * most / (cut * total)
    event = E.Repeat(E.TruncatedPoisson(rate, total, most, E.Gaussian(sigma)), count)
    release = O.Chosen((1 - cut, cut), (O.sampled_normal(rate, 1 / sigma), O.Replaced(kept, 2 / sigma)))
    return Setting("truncated poisson", event, same([(release, count)]))


def choices(rng: np.random.Generator) -> Setting:
    epsilon, count, sigma = log_uniform(rng, 0.05, 2.0), int(log_uniform(rng, 1, 60)), log_uniform(rng, 0.7, 20)
    # An exponential mechanism with two outcomes whose losses are t and t − ε.
    t = epsilon * float(rng.uniform(0.2, 0.8))
    p = -math.expm1(t - epsilon) / -math.expm1(-epsilon)
    atoms = O.Atoms((p, 1 - p), (p * math.exp(-t), (1 - p) * math.exp(epsilon - t)))
    event = E.Together(E.Repeat(E.Exponential(epsilon), count), E.Gaussian(sigma))
    return Setting("exponential", event, floor([(atoms, count), (O.Normal(1 / sigma), 1)]))


def searches(rng: np.random.Generator) -> Setting:
    flip = float(rng.uniform(0.2, 0.95))
    run = E.RandomisedResponse(flip)
    if rng.random() < 0.5:
        mean = log_uniform(rng, 0.3, 60)
        event: E.Event = E.TunePoisson(run, mean)
        generating = lambda z: math.exp(mean * (z - 1))  # noqa: E731
    else:
        stop = log_uniform(rng, 0.01, 0.7)
        event = E.TuneNegativeBinomial(run, 1.0, stop)
        generating = lambda z: stop * z / (1 - (1 - stop) * z)  # noqa: E731
    # A run that answers one bit, and a score that prefers a one: the winner is one unless every run answered zero.
    zero = (flip / 2, 1 - flip / 2)
    lost = [generating(x) for x in zero]
    nothing = generating(0.0)

    def truth(epsilon: float) -> tuple[Answer, Answer]:
        found = 0.0
        for one, other in ((0, 1), (1, 0)):
            pairs = [(1 - lost[one], 1 - lost[other]), (lost[one] - nothing, lost[other] - nothing), (nothing, nothing)]
            found = max(found, math.fsum(max(0.0, p - math.exp(epsilon) * q) for p, q in pairs))
        return Answer(found, 1e-14), Answer(1.0, 0.0)

    return Setting("search", event, truth)


def shuffled(rng: np.random.Generator) -> Setting:
    sigma, lots, passes = log_uniform(rng, 0.5, 20), int(rng.integers(2, 300)), int(rng.integers(1, 30))
    event = E.Repeat(E.Shuffle(E.Repeat(E.Gaussian(sigma), lots)), passes)
    # With all batches known to the attacker but the record's own, a pass would be one Gaussian release: nobody sees more.
    unamplified = [(O.Normal(1 / sigma), passes)]
    return Setting("shuffle", event, lambda epsilon: (Answer(0.0, 0.0), O.delta_of(unamplified, epsilon)))


KINDS: dict[str, tuple[Callable[[np.random.Generator], Setting], int]] = {
    "gaussian": (gaussians, 4),
    "poisson": (poisson, 22),
    "one draw": (one_release, 10),
    "plain": (unsampled, 12),
    "composed": (composed, 34),
    "answers": (answers, 8),
    "two bins": (two_bins, 4),
    "many bins": (many_bins, 5),
    "answers in bins": (answers_in_bins, 5),
    "fixed size": (fixed_size, 6),
    "replaced": (replaced, 4),
    "truncated": (truncated, 4),
    "exponential": (choices, 4),
    "search": (searches, 4),
    "shuffle": (shuffled, 2),
}
"""How each kind is drawn, and its share in the sweep."""


def draw(seed: int, number: int) -> tuple[Setting, np.random.Generator]:
    """Returns the setting of this number; the same for the same seed."""
    rng = np.random.default_rng([seed, number])
    names = list(KINDS)
    shares = np.array([KINDS[name][1] for name in names], dtype=float)
    name = names[int(rng.choice(len(names), p=shares / shares.sum()))]
    return KINDS[name][0](rng), rng


def compare_at_delta(setting: Setting, delta: float) -> Outcome:
    """Returns how our bounds on ε at δ stand to the truth."""
    low, high = PLD(relation=setting.relation).bounds(setting.event, delta)
    wrong = ""
    if math.isfinite(high):
        reached, _ = setting.truth(high)
        if reached.delta - reached.error > delta * (1 + 1e-9):
            wrong = f"upper: δ({high!r}) is {reached.delta!r} ± {reached.error:.1e}"
    if low > 0:
        _, allowed = setting.truth(low)
        if allowed.delta + allowed.error < delta * (1 - 1e-9):
            wrong = f"lower: δ({low!r}) is {allowed.delta!r} ± {allowed.error:.1e}"
    gap = (high - low) / high if math.isfinite(high) and high > 0 else 0.0 if high == 0 else math.inf
    return Outcome(setting.kind, repr(setting.event), f"delta={delta!r}", low, high, gap, wrong)


def compare_at_epsilon(setting: Setting, epsilon: float) -> Outcome:
    """Returns how our bounds on δ at ε stand to the truth."""
    low, high = PLD(relation=setting.relation).delta_bounds(setting.event, epsilon)
    reached, allowed = setting.truth(epsilon)
    wrong = ""
    if high < (reached.delta - reached.error) * (1 - 1e-9):
        wrong = f"upper: δ is {reached.delta!r} ± {reached.error:.1e}"
    if low > (allowed.delta + allowed.error) * (1 + 1e-9):
        wrong = f"lower: δ is {allowed.delta!r} ± {allowed.error:.1e}"
    return Outcome(
        setting.kind,
        repr(setting.event),
        f"epsilon={epsilon!r}",
        low,
        high,
        (high - low) / high if high else 0.0,
        wrong,
    )


def compare(seed: int, number: int) -> list[Outcome]:
    """Returns four comparisons of one setting: at two δ, and at two ε of about that size."""
    setting, rng = draw(seed, number)
    results = []
    for _ in range(2):
        found = compare_at_delta(setting, log_uniform(rng, 1e-12, 0.1))
        results.append(found)
        size = found.high if math.isfinite(found.high) and found.high > 0 else 1.0
        results.append(compare_at_epsilon(setting, min(size * float(rng.uniform(0.3, 1.2)), 60.0)))
    return results
