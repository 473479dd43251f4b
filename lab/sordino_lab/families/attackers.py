"""What an attacker can learn: reconstruction, membership inference, model inversion, and sensitivity.

Figures of sources 002, 003 and 004: the fundamental law of information recovery (Dinur and Nissim 2003), trade-off curves
with a real attack beside them, model inversion before and after DP, and global and local sensitivity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from sordino.accounting import PLD, epsilon_delta_tradeoff, gaussian_mu, gaussian_tradeoff, subsampled_tradeoff
from sordino.app import data
from sordino.app.report.panels import Field, Panel, Series
from sordino.auditing.bounds.two_worlds import Errors
from sordino.auditing.bounds.two_worlds import gaussian_epsilon_lower_bound as audited_gaussian
from sordino.auditing.bounds.two_worlds import mu_lower_bound as audited_mu
from sordino.clipping.flat import Flat
from sordino.events import Laplace, Repeat
from sordino.ledger.claims import Guarantee
from sordino.nn import logistic_regression
from sordino.privacy_loss.gaussian import gaussian_delta, gaussian_epsilon
from sordino.private import Private
from sordino.queries.noisy_sum import NoisySum
from sordino.release.noise import Gaussian
from sordino.sampling.poisson import Poisson
from sordino_lab.descent import descend, dp_sgd_query, squared_error
from sordino_lab.experiment import Figure, Finding, Outcome
from sordino_lab.workbench import Workbench

OLDEST = 100
AGES = (23, 25, 31, 34, 38, 41, 44, 52, 58, 63, 71)
AGE_QUERIES: dict[str, Callable[[Sequence[float]], float]] = {
    "count": lambda x: float(len(x)),
    "sum": lambda x: float(np.sum(x)),
    "mean": lambda x: float(np.mean(x)),
    "maximum": lambda x: float(np.max(x)),
    "median": lambda x: float(np.median(x)),
}


def local_sensitivity(query: Callable[[Sequence[float]], float], data: Sequence[float]) -> float:
    """Returns the local sensitivity that the lab's attackers profit from: the most that the answer moves when one
    record is added or removed, by trying all of them.
    """
    # All neighbours: one record fewer, or one more of any age.
    without = [[*data[:k], *data[k + 1 :]] for k in range(len(data))] if len(data) > 1 else []
    neighbours = [*without, *([*data, age] for age in range(OLDEST + 1))]
    return max(abs(query(data) - query(other)) for other in neighbours)


def global_sensitivity(query: Callable[[Sequence[float]], float], n: int) -> float:
    """Returns the global sensitivity, which bounds what the lab's attackers profit from: the most over datasets that
    are worst for some query, some ages at one end and the others at the other.
    """
    # For these queries the worst dataset has all its ages at the two ends.
    ends = [[0] * k + [OLDEST] * (n - k) for k in range(n + 1)]
    return max(local_sensitivity(query, data) for data in ends)


def draw_sensitivity(bench: Workbench) -> Outcome:
    """Draws global and local sensitivity of example queries on one small table of ages, which an attacker could tell
    records apart by.
    """
    # The same queries on the table at hand and on the worst table of its size.
    names = list(AGE_QUERIES)
    n = len(AGES)
    here = [local_sensitivity(query, AGES) for query in AGE_QUERIES.values()]
    worst = [global_sensitivity(query, n) for query in AGE_QUERIES.values()]
    # The marks of a query stand side by side: both sensitivities of a count and of a sum are the same. A mean gets less
    # sensitive with more records; a median and a sum do not.
    aside = 0.12
    sizes = (2, 3, 5, 9, 15, 25)
    return Outcome(
        [
            Panel(
                f"queries on {n} ages in [0, 100]",
                "query",
                "sensitivity, in the answer's unit",
                [
                    Series(
                        "global: over all datasets of this size",
                        [k - aside for k in range(len(names))],
                        worst,
                        method="global-sensitivity",
                        points=True,
                    ),
                    Series(
                        "local: of these ages",
                        [k + aside for k in range(len(names))],
                        here,
                        method="local-sensitivity",
                        variant=1,
                        points=True,
                    ),
                ],
                xticks=tuple(names),
                ylog=True,
            ),
            Panel(
                "against the number of records",
                "records n",
                "global sensitivity",
                [
                    Series(
                        name,
                        sizes,
                        [global_sensitivity(AGE_QUERIES[name], k) for k in sizes],
                        method=f"query-{name}",
                        variant=v,
                    )
                    for v, name in enumerate(("mean", "median", "sum"))
                ],
                xlog=True,
                ylog=True,
            ),
        ],
        notes=[
            "The source defines both sensitivities (004:94 and 106) and claims nothing of these queries. Here the "
            f"global one is {'' if all(w >= h for w, h in zip(worst, here, strict=True)) else 'not '}at least the "
            f"local one for every query; the median of these ages moves by at most {here[4]:g} years, that of some "
            f"dataset by {worst[4]:g}.",
            "Noise in proportion to local sensitivity is not private: the amount of noise tells about the data. "
            "Noise must be scaled to the global one, or to a smooth bound on the local one.",
        ],
        numbers={"queries": names, "local": here, "global": worst},
    )


_ROUNDING = 1e-9
"""Of trade-off curves, which meet the lecture's inequality with equality at their ends."""
SECRET_BITS = 100


def recover_bits(rng: np.random.Generator, queries: int, scale: float) -> float:
    """Returns the share of secret bits that the lab's reconstruction attacker finds again by rounded least squares from
    noisy random subset sums.
    """
    # Centring questions and answers makes least squares look at the bits alone.
    secret = rng.integers(0, 2, SECRET_BITS)
    ask = rng.integers(0, 2, (queries, SECRET_BITS))
    answers = ask @ secret + (rng.laplace(0, scale, queries) if scale else 0.0)
    guess = np.linalg.lstsq(ask - 0.5, answers - ask.sum(axis=1) / 2, rcond=None)[0]
    return float(((guess > 0) == secret).mean())


def draw_fundamental_law(bench: Workbench) -> Outcome:
    """Draws the share of bits that a reconstruction attacker recovers against the number of queries, for fixed noise
    and for a fixed budget.
    """
    # Exact answers, two amounts of fixed noise, and noise that grows with the questions.
    rng, repeats = bench.make_rng(4), bench.pick(1, 6, 20, 50)
    counts = bench.pick(
        (20, 100),
        (10, 25, 50, 100, 200, 400, 800, 1600),
        (10, 25, 50, 100, 200, 400, 800, 1600),
        (10, 25, 50, 100, 200, 400, 800, 1600, 3200, 6400),
    )
    lines, found = [], {}
    for k, scale in enumerate((0.0, 2.0, 10.0)):
        many = [[100 * recover_bits(rng, q, scale) for _ in range(repeats)] for q in counts]
        found[scale] = [float(np.mean(one)) for one in many]
        label = "exact answers" if not scale else f"Laplace noise of scale {scale:g} on each"
        lines.append(
            Series(
                label,
                counts,
                found[scale],
                low=[min(o) for o in many],
                high=[max(o) for o in many],
                method="sgd" if not scale else "laplace",
                variant=k,
                hollow="" if scale else "no noise",
            )
        )
    # Under a fixed budget every answer gets noisier as there are more of them.
    many = [[100 * recover_bits(rng, q, q / 1.0) for _ in range(repeats)] for q in counts]
    budget = [float(np.mean(one)) for one in many]
    lines.append(
        Series(
            "noise for ε = 1 over all queries",
            counts,
            budget,
            low=[min(o) for o in many],
            high=[max(o) for o in many],
            method="exact",
            variant=3,
        )
    )
    # The price of the answers by exact composition, beside their plain sum.
    epsilons = [PLD().epsilon(Repeat(Laplace(10.0), q), 1e-5) for q in counts]
    return Outcome(
        [
            Panel(
                "100 secret bits, random subset sums", "queries", "bits recovered, %", lines, xlog=True, ylim=(40, 101)
            ),
            Panel(
                "what noise of scale 10 costs",
                "queries",
                "ε at δ = 1e-5",
                [
                    Series("exact (PLD)", counts, epsilons, method="pld"),
                    Series("sum, basic composition", counts, [q / 10 for q in counts], method="basic", variant=1),
                ],
                xlog=True,
                ylog=True,
            ),
        ],
        findings=[
            Finding(
                "if we query a dataset enough times, we can discover information about specific data points",
                "004:174",
                bench.judge(found[2.0][-1] > 90),
                f"{found[2.0][-1]:.0f} % of the bits after {counts[-1]} answers with noise of scale 2, "
                f"{found[10.0][-1]:.0f} % at scale 10; {budget[-1]:.0f} % where the noise grows to keep ε = 1",
            ),
            Finding(
                "in other words, the privacy loss increases with the number of queries",
                "004:174",
                bench.judge(all(later > earlier for earlier, later in pairwise(epsilons))),
                f"from ε = {epsilons[0]:.2f} to {epsilons[-1]:.1f}",
            ),
        ],
        notes=[
            f"Curves are means of {repeats} repetitions, and bands reach from the least to the most of them.",
            "The dip at 100 queries is that of least squares where there are as many answers as bits.",
        ],
    )


CURVE_EPSILON, CURVE_DELTA, ATTACKED_NOISE, ATTACKED_RATE = 1.0, 1e-5, 1.0, 1e-6


def score_releases(present: bool, steps: int) -> NDArray[np.float64]:
    """Returns what each release tells the lab's membership attacker in the direction of a record that is there or is
    not; ten others are known.

    One training with a rate of almost nothing: every step asks the same question again, with noise of its own.
    """
    # Ten known records, and the target so far away that its gradient is always clipped.
    rng = torch.Generator().manual_seed(5)
    x, y = torch.randn(10, 3, generator=rng), torch.zeros(10)
    if present:
        x, y = torch.cat([x, torch.tensor([[0.0, 0.0, 30.0]])]), torch.cat([y, torch.tensor([40.0])])
    path = descend(
        [0.0, 0.0, 0.0], squared_error, x, y, dp_sgd_query(1.0, ATTACKED_NOISE), ATTACKED_RATE, steps, seed=int(present)
    ).points
    return np.asarray((path[1:, 2] - path[:-1, 2]).double().numpy())


def find_least_slack(mu: float, rate: float) -> float:
    """Returns by how much, at least, the sampled Gaussian mechanism keeps the lecture's inequality for sampled mechanisms;
    it is negative where the inequality is broken.

        β + (1 − q + qe^ε)α − (1 − δ)        and the same with α and β exchanged

    The Gaussian mechanism is (ε, δ(ε))-DP for every ε, so the inequality is tried for many.
    """
    # Every attacker's errors lie on the trade-off curve or above it, so its points are the ones to try.
    alpha = np.linspace(0, 1, 1001)
    beta = subsampled_tradeoff(mu, rate, alpha)
    slacks = []
    for epsilon in np.linspace(0.05, 8.0, 160):
        factor, delta = 1 - rate + rate * np.exp(epsilon), gaussian_delta(mu, float(epsilon))
        slacks += [(beta + factor * alpha).min() - (1 - delta), (factor * beta + alpha).min() - (1 - delta)]
    return float(min(slacks))


def draw_tradeoff_curves(bench: Workbench) -> Outcome:
    """Draws type I against type II errors of the best attacker, and a real membership-inference attack beside them."""
    # What each kind of guarantee allows at every rate of false alarms.
    alpha = np.linspace(0, 1, 101)
    mu = gaussian_mu(CURVE_EPSILON, CURVE_DELTA)
    curves = [
        Series("ε = 1, δ = 0", alpha, epsilon_delta_tradeoff(CURVE_EPSILON, 0.0, alpha), method="laplace", variant=1),
        Series(
            "ε = 1, δ = 1e-5",
            alpha,
            epsilon_delta_tradeoff(CURVE_EPSILON, CURVE_DELTA, alpha),
            method="advanced",
            variant=2,
        ),
        Series(f"Gaussian of the same (ε, δ), μ = {mu:.2f}", alpha, gaussian_tradeoff(mu, alpha), method="gaussian"),
        Series(
            "Gaussian μ = 1, sampled at q = 0.1",
            alpha,
            subsampled_tradeoff(1.0, 0.1, alpha),
            method="sampled-gaussian",
            variant=3,
        ),
        Series("guessing", [0, 1], [1, 0], method="none", variant=3),
    ]
    # The attack: a threshold on what each release says of the record.
    trials = bench.pick(15, 400, 2000, 10_000)
    there, away = score_releases(True, trials), score_releases(False, trials)
    # One record moves the sum by the bound, so the claim of one release is μ = 1/σ.
    limit = 1 / ATTACKED_NOISE
    cuts = np.quantile(np.concatenate([there, away]), np.linspace(0.05, 0.95, 10))
    false_alarm = np.array([(away >= c).mean() for c in cuts])
    missed = np.array([(there < c).mean() for c in cuts])
    allowed = gaussian_tradeoff(limit, false_alarm)
    spread = 2.6 * np.sqrt(0.25 / trials)  # 99 % of a share, at most
    attack = [
        Series("best attack that the claim allows", alpha, gaussian_tradeoff(limit, alpha), method="gaussian"),
        Series(
            f"the attack, {2 * trials} releases",
            false_alarm,
            missed,
            low=missed - spread,
            high=np.minimum(1, missed + spread),
            method="attack",
            points=True,
        ),
        Series("guessing", [0, 1], [1, 0], method="none", variant=3),
    ]
    # A point below the curve would contradict the claim, if it were below by more than chance.
    worst = float((allowed - missed).max())
    # A rule from the first half of the releases, judged on the others: what the attack proves, whatever the claim says.
    half = trials // 2
    cut = float(np.median(np.concatenate([there[:half], away[:half]])))
    judged = Errors(int((there[half:] < cut).sum()), trials - half, int((away[half:] >= cut).sum()), trials - half)
    proved, proved_epsilon = audited_mu(judged), audited_gaussian(judged, CURVE_DELTA)
    claimed = gaussian_epsilon(limit, CURVE_DELTA)
    slack = find_least_slack(1.0, 0.1)
    return Outcome(
        [
            Panel("what ε, δ allow an attacker", "type I error α (false alarm)", "type II error β (missed)", curves),
            Panel(
                f"membership inference on one step of DP-GD, μ = {limit:.2f}",
                "type I error α (false alarm)",
                "type II error β (missed)",
                attack,
            ),
        ],
        findings=[
            Finding(
                "claim: β + (1 − q + qe^ε)α ≥ 1 − δ and (1 − q + qe^ε)β + α ≥ 1 − δ",
                "003:743",
                bench.judge(slack >= -_ROUNDING),
                "for the errors that the Gaussian mechanism of μ = 1, sampled at q = 0.1, allows, the left sides less "
                f"1 − δ are at least {slack:.1e} at 1,001 values of α for 160 values of ε up to 8",
            ),
        ],
        notes=[
            f"The attack's errors are below the curve that the claim allows by at most {max(0.0, worst):.3f}; the error of "
            f"{2 * trials} releases is {2 * spread:.3f}.",
            f"The attack audited, with 95 % confidence: μ ≥ {proved:.2f} where {limit:.2f} is claimed, so ε ≥ "
            f"{proved_epsilon:.2f} of {claimed:.2f} at δ = 1e-5. A low bound would prove nothing.",
        ],
        numbers={
            "alpha": false_alarm.tolist(),
            "beta": missed.tolist(),
            "trials": trials,
            "audited μ, at least": proved,
            "claimed μ": limit,
            "audited ε, at least": proved_epsilon,
            "claimed ε": claimed,
        },
    )


Picture = NDArray[np.float64]
INVERTED_CLASS, INVERTED_DELTA = 3, 1e-5
_FOUND_AGAIN = 0.3
"""Correlation from which on a picture counts as found again."""


def cross_entropy_per_record(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns the cross-entropy of every record."""
    return F.cross_entropy(model(x), y, reduction="none")


def train_classifier(x: Tensor, y: Tensor, noise: float, steps: int) -> tuple[nn.Module, float | None]:
    """Returns the logistic regression that the lab's model-inversion attacker attacks, trained with DP where there is
    noise, and its ε.
    """
    # Without noise there is no bound either, so that the two networks differ in privacy alone.
    torch.manual_seed(0)
    model = logistic_regression(tuple(x.shape[1:]), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ask = NoisySum(Flat(1.0 if noise else float("inf")), Gaussian(noise))
    private = Private(model, cross_entropy_per_record, ask, seed=0)
    for lot in private.draws(TensorDataset(x, y), Poisson(0.1), steps):
        private.backward(lot)
        optimizer.step()
    # Without noise there is no guarantee, and None says so where a number would be taken for an ε.
    said = private.claim(INVERTED_DELTA)
    return model, said.epsilon if isinstance(said, Guarantee) else None


def invert_class(model: nn.Module, shape: tuple[int, ...]) -> Picture:
    """Returns the input that the lab's attacker finds by model inversion: what the network takes for the class with the
    most confidence, in small steps from grey.
    """
    # Gradient descent on the input, with a penalty that keeps it from wild values.
    guess = torch.full((1, *shape), 0.5, requires_grad=True)
    for _ in range(100):
        loss = F.cross_entropy(model(guess), torch.tensor([INVERTED_CLASS])) + 0.02 * guess.square().sum()
        (slope,) = torch.autograd.grad(loss, guess)
        with torch.no_grad():
            guess -= 0.5 * slope
            guess.clamp_(0, 1)
    return np.asarray(guess.detach().numpy()[0, 0])


def correlate_pictures(one: Picture, other: Picture) -> float:
    """Returns the correlation of two pictures."""
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1])


def draw_model_inversion(bench: Workbench) -> Outcome:
    """Draws an attacker's inversion of two networks trained with a planted record, beside the class's average and that
    record.
    """
    records, steps = bench.pick(200, 2_000, 20_000, 60_000), bench.pick(4, 150, 300, 600)
    loaded = data.digits(train=records, test=10) if bench.is_tiny else data.load("mnist")
    x, y = (tensor[:records] for tensor in loaded.train.to_dataset().tensors)
    # A picture of noise is planted in the class: what inversion finds of it would be about a single record.
    planted = (torch.rand(x.shape[1:], generator=torch.Generator().manual_seed(9)) > 0.8).float() * 1.0
    x, y = torch.cat([x, planted[None]]), torch.cat([y, torch.tensor([INVERTED_CLASS])])
    pictures: dict[str, Picture] = {
        f"average of the class {INVERTED_CLASS}": np.asarray(x[:-1][y[:-1] == INVERTED_CLASS].mean(0)[0].numpy()),
        f"planted record, labelled {INVERTED_CLASS}": np.asarray(planted[0].numpy()),
    }
    # The same network with and without privacy, attacked in the same way.
    plain, _ = train_classifier(x, y, 0.0, steps)
    private, epsilon = train_classifier(x, y, 2.0, steps)
    pictures[f"{INVERTED_CLASS} by inversion, no privacy"] = invert_class(plain, tuple(x.shape[1:]))
    pictures[f"{INVERTED_CLASS} by inversion, ε = {epsilon or 0:.1f}"] = invert_class(private, tuple(x.shape[1:]))
    side = range(x.shape[-1])
    # Correlations say whether an inversion shows the class, which is no secret, or the planted record.
    average, record, before, after = pictures.values()
    return Outcome(
        [
            Panel(name, "pixel", "pixel", field=Field(side, side, [row.tolist() for row in picture], image=True))
            for name, picture in pictures.items()
        ],
        findings=[
            Finding(
                "what GMI does is reconstruction of an average representation of each class",
                "002:191",
                bench.judge(correlate_pictures(before, average) > _FOUND_AGAIN),
                f"correlation with the class's average {correlate_pictures(before, average):.2f} without privacy and "
                f"{correlate_pictures(after, average):.2f} with DP",
            ),
            Finding(
                "differential privacy in its canonical form cannot protect data from GMI",
                "002:191",
                bench.judge(correlate_pictures(after, average) > _FOUND_AGAIN),
                "the average is still found, and DP does not promise otherwise: it is not about a record",
            ),
        ],
        notes=[
            "Whether similar approaches can break DP is a question of the source (002:193). Here a record planted in the "
            f"class correlates {correlate_pictures(before, record):.2f} with what is found without privacy and "
            f"{correlate_pictures(after, record):.2f} with DP.",
            "What DP bounds is how well a single record can be reconstructed, or its presence told: see "
            "tradeoff-curves.",
        ],
        numbers={"epsilon": epsilon},
    )


FIGURES = {
    "sensitivity": Figure(draw_sensitivity),
    "fundamental-law": Figure(draw_fundamental_law),
    "tradeoff-curves": Figure(draw_tradeoff_curves),
    "model-inversion": Figure(draw_model_inversion),
}
