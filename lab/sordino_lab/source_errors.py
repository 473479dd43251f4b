"""Errors of the sources: methods that are called private and are not, with a counterexample, and misprints.

`list_not_private` returns methods that a source calls private, or prints an ε beside, although they have no such guarantee.
`SLIPS` lists statements that are printed wrongly; those that weaken privacy are in the first list too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from sordino.accounting import (
    PLD,
    amplify_by_sampling,
    analytic_gaussian,
    gaussian_epsilon,
    optimal,
    shuffle_lower_bound,
)
from sordino.events import Gaussian, Laplace, Poisson, Repeat

DELTA = 1e-5


@dataclass(frozen=True)
class NotPrivate:
    """A method that a source calls private and that is not."""

    title: str
    says: str
    """What the source says, as a sentence."""
    line: str
    """SOURCE:LINE, or several lines."""
    witness: str
    """A counterexample, or the reason why the sentence is wrong."""
    number: str
    """What the method really costs."""


@cache
def list_not_private() -> tuple[NotPrivate, ...]:
    """Returns the errors of the sources that concern privacy: all methods that are called private and are not."""
    # Every number is computed anew, so that the page cannot drift from the accountants.
    thesis = PLD().epsilon(Repeat(Poisson(1 / 240, Gaussian(1.1)), 7200), DELTA)
    laplace = PLD().epsilon(Repeat(Laplace(10.0), 1000), 1e-3)
    one = gaussian_epsilon(1 / 1.1, DELTA)
    shuffled = shuffle_lower_bound(1.1, 240, 30, DELTA)
    return (
        NotPrivate(
            "Sorted lots at ε = 1.769",
            "The tables and figures of SortedDPSGD carry ε = 1.769 (MNIST) and 1.729 (CIFAR-10), although the text says "
            "that topk is not DP",
            "001:400–423",
            "Add one record whose gradient is the longest. It pushes another record out of its lot, and that one pushes "
            "out the next: which records take part depends on all of them, whatever noise is added to their sum",
            "There is no ε. The printed one is that of DP-SGD on Poisson lots by Rényi accounting; the certified value for "
            f"those is {thesis:.3f}",
        ),
        NotPrivate(
            "The lookahead of ProjectedDPSGD",
            "ε = 1.729 stands under its tables, and noise is added once, to the final update",
            "001:979, 1008",
            "Take losses C|θ − k| whose kinks lie between two virtual points. One record decides at which of them the "
            "second gradients are taken, and there the gradients of all other records change their sign",
            "With 200 records and ρ = 2 the sum moves by 200·C, against noise of 1.1·C. NoisyLookahead adds noise on the "
            "way",
        ),
        NotPrivate(
            "The batch's median as a bound",
            "The clip bound is the median, or the minimum, of the gradient lengths in the lot itself",
            "001:402, 646",
            "Two lots that differ in one record have two different bounds, so the share of every other record changes, and "
            "so does the noise",
            "There is no bound: nothing limits how far the sum moves. AdaptiveQuantile follows a quantile with noise of "
            "its own",
        ),
        NotPrivate(
            "Shuffled batches at Poisson's ε",
            "The batches of an epoch are disjoint, and the ε printed beside them is that of Poisson lots",
            "001:398–409",
            "In a shuffled pass every record takes part exactly once, so an attacker knows that it was there",
            f"For 30 passes of 240 batches at σ = 1.1 Poisson's ε is {thesis:.2f}, and no accountant can claim less than "
            f"{shuffled:.1f} for shuffled batches",
        ),
        NotPrivate(
            "Noise inside the sum over the lot",
            "Noise is added to every clipped gradient inside the sum, and the sum is divided by the number of records in "
            "the lot",
            "000:126",
            "The noise grows with the lot and is missing in an empty one, and the divisor is itself a private number",
            "Without records the answer is always the same; with one record it differs whenever that record is drawn. So "
            "no δ below the sampling rate can be claimed, however large σ is",
        ),
        NotPrivate(
            "Advanced composition without its drift",
            "k steps are (ε√(2k ln 1/δ), δ)-DP",
            "003:489, 517",
            "Laplace noise contradicts this: the privacy loss of a release has a positive mean, and the means of k "
            "releases add up",
            f"At ε = 0.1, k = 1000 and δ = 1e-3 the formula promises 11.75, and Laplace noise costs {laplace:.2f}",
        ),
        NotPrivate(
            "Advanced composition with a smaller drift",
            "k mechanisms, each of which is (ε, δ)-DP, are (ε√(2k ln(1/δ′)) + k(e^ε − 1)/(e^ε + 1), kδ + δ′)-DP",
            "003:501",
            "The drift of the theorem is kε(e^ε − 1)/(e^ε + 1) (Kairouz, Oh and Viswanath 2015, arXiv:1311.0776). Above "
            "ε = 1 the printed one is smaller, and randomised response needs more",
            _cost_of_printed_drift(),
        ),
        NotPrivate(
            "Sampling multiplies ε by q",
            "Querying a fraction q of the records reduces ε to qε, and T queries cost qTε",
            "004:188–206",
            "A release that gives a record away whenever it is drawn still does so with probability q: the ε of sampling "
            "is log(1 + q(e^ε − 1))",
            f"At q = 0.01 and ε = {one:.2f} the formula gives {0.01 * one:.3f}; the right value is "
            f"{amplify_by_sampling(one, DELTA, 0.01)[0]:.3f}",
        ),
        NotPrivate(
            "The analytic Gaussian mechanism, scaled by 1/ε",
            "The optimal noise is σ = (√(2+u) + √u)·Δ/ε, where u is the argmin of an expression without δ and without e^ε",
            "003:65–67",
            "Balle and Wang (2018) divide by 2√ε, and their u is where the expression, with e^ε, equals δ; as printed it "
            "has no minimum. With their u and the printed scale the noise above ε = 4 is less than the least that suffices",
            _cost_of_printed_gaussian(),
        ),
        NotPrivate(
            "Laplace noise of half the sensitivity",
            "The mean of vectors clipped to length τ in ℓ₁ is released with noise Lap(τ/(nε))",
            "003:187",
            "Exchanging a record moves the mean by up to 2τ/n, as the lecture itself has it at lines 141 and 215: from a "
            "vector of length τ to its opposite",
            "The noise that is printed costs 2ε in place of ε",
        ),
        NotPrivate(
            "Private for any σ > 0",
            "The theorem about L2 inside the clip says “(ε, δ)-differentially private for any σ > 0”",
            "000:224",
            "The theorem holds for any δ > 0, with the σ that it chooses. With σ = 0.1 the sum of a lot is hardly changed",
            "At σ = 0.1, with the slides' rate of 0.02 and 750 steps, no accountant can claim less than "
            f"ε = {_epsilon_of_little_noise():.0f}",
        ),
    )


def _cost_of_printed_drift() -> str:
    """Returns what an error of the sources really costs at ε = 3: the printed drift of advanced composition, which lacks a
    factor ε.
    """
    epsilon, count, delta = 3.0, 1000, 1e-3
    printed = epsilon * math.sqrt(2 * count * math.log(1 / delta)) + count * math.tanh(epsilon / 2)
    return (
        f"At ε = {epsilon:g}, k = {count} and δ′ = {delta:g} the formula promises {printed:.0f}, and the optimal "
        f"composition needs {optimal(epsilon, 0.0, count, delta):.0f}"
    )


def _cost_of_printed_gaussian() -> str:
    """Returns what an error of the sources really costs where ε = 8 is asked: the printed scaling of the analytic
    Gaussian mechanism, with the right u.
    """
    asked = 8.0
    least = analytic_gaussian(asked, DELTA)
    printed = least * 2 / math.sqrt(asked)
    return (
        f"At ε = {asked:g} and δ = 1e-5 the least noise is {least:.3f}; scaled as printed it is {printed:.3f}, "
        f"which costs ε = {gaussian_epsilon(1 / printed, DELTA):.1f}"
    )


def _epsilon_of_little_noise() -> float:
    """Returns the least ε that any accountant can claim for σ = 0.1 in the slides' setting."""
    return PLD().bounds(Repeat(Poisson(0.02, Gaussian(0.1)), 750), DELTA)[0]


@dataclass(frozen=True)
class Slip:
    """A statement that a source prints wrongly."""

    line: str
    """SOURCE:LINE."""
    prints: str
    right: str
    follows: str
    """What follows for somebody who copies it."""


SLIPS: tuple[Slip, ...] = (
    Slip(
        "000:126",
        "noise inside the sum over the lot, and the sum divided by the number of records in the lot",
        "noise once for each lot, N(0, σ²R²I), and the sum divided by the expected size L",
        "noise √|I| times as large as accounted for, none at all in an empty lot, and a divisor that tells the lot's "
        "size",
    ),
    Slip(
        "000:224",
        "(ε, δ)-differentially private “for any σ > 0”",
        "for any δ > 0: σ is what the theorem chooses (Abadi et al. 2016, theorem 1)",
        "as printed, a run without noise would be private",
    ),
    Slip(
        "000:363",
        "L2 inside the clip keeps an accuracy of about 97 % for every λ up to 10",
        "built exactly, the penalty takes over the clipped gradient from λ = 0.1 on, and nothing is learnt at λ = 10. A "
        "likely reading is that the penalty was added to the loss, where hooks at the layers do not see it: after 20 steps "
        "the parameters are then the same for λ = 0 and λ = 5 (wd-mnist-ignored)",
        "a private run, but not of the method",
    ),
    Slip(
        "000:514",
        "“R ∈ {1.5, 3, 7.5, 15}” under a figure of noise multipliers",
        "σ ∈ {1.5, 3, 7.5, 15}",
        "nothing",
    ),
    Slip(
        "001:249",
        "the probability for the attacker to guess right is bounded by e^ε",
        "by e^ε/(1 + e^ε) without δ: e^ε is at least 1, which bounds every probability",
        "nothing: the printed bound is true and empty",
    ),
    Slip(
        "001:675",
        "ε = 1.769 under table 4.7, which is about CIFAR-10 over 30 epochs",
        "1.729, the ε of CIFAR-10 over 30 epochs; 1.769 is that of MNIST. Neither is true of lots by rank, which have "
        "no guarantee",
        "the same run has another number here than under the tables beside it",
    ),
    Slip(
        "001:693",
        "ε = 2.268 under figure 4.15, which is over 30 epochs",
        "1.729; 2.268 belongs to 50 epochs",
        "the same run has another number here than under the tables beside it",
    ),
    Slip(
        "001:786–787",
        "1.85 and 34.27 % for minimum and median at learning rate 0.01 in table 4.10",
        "these are DP-SGD's numbers of table 4.5 (001:567); table 4.7 has 1.9 and 31.98 % for the minimum with the same C",
        "both bounds seem better by two points than they are",
    ),
    Slip(
        "001:804",
        "“results as in figure 4.3” show that SortedDPSGD can do better than DPSGD",
        "figure 4.4: in figure 4.3 sorted lots are about 2 points worse in all runs (001:511)",
        "nothing",
    ),
    Slip(
        "001:1326",
        "C = 1 over table A.1",
        "C = 5: table 5.1 has other numbers at C = 1, and those of A.1 are near table 4.3, which is of C = 5",
        "who repeats it as printed gets 36 % instead of 51 % at learning rate 0.1",
    ),
    Slip("001:977", "“as table 5.3 shows”", "table 5.1: there is no table 5.3", "nothing"),
    Slip(
        "002:116",
        "the number of batches in an epoch is of the order of the number of epochs, O(L/N) = O(T)",
        "N/L batches make an epoch: N/L ≈ E, so L ≈ √N where E is the number of epochs; T counts steps",
        "the printed rule would make lots as large as the data",
    ),
    Slip("002:164", "δ varies between 10⁻² and 10⁻²", "between 10⁻⁵ and 10⁻² (Abadi et al. 2016, figure 4)", "nothing"),
    Slip(
        "002:185",
        "97 % training accuracy on MNIST, with (8, 10)⁻⁵-differential privacy",
        "97 % test accuracy, with (8, 10⁻⁵)-differential privacy",
        "nothing",
    ),
    Slip(
        "003:65",
        "the analytic Gaussian mechanism as an argmin of Φ(−√(εu)) − Φ(−√(ε(u+2))), without e^ε",
        "the least u with Φ(−√(εu)) − e^ε Φ(−√(ε(u+2))) ≤ δ (Balle and Wang 2018, arXiv:1805.06530, algorithm 1)",
        "the noise does not depend on δ, and is infinite: what is printed falls towards 0 and has no minimum",
    ),
    Slip(
        "003:67", "σ = (√(2+u) + √u) Δ/ε", "σ = (√(2+u) + √u) Δ/(2√ε)", "too little noise above ε = 4, too much below"
    ),
    Slip(
        "003:187",
        "Lap(τ/(nε)) for the mean of vectors clipped to τ",
        "Lap(2τ/(nε)), because exchanging a record moves the mean by up to 2τ/n (003:141)",
        "a guarantee of 2ε in place of ε",
    ),
    Slip(
        "003:501",
        "a drift of k(e^ε − 1)/(e^ε + 1) in advanced composition",
        "kε(e^ε − 1)/(e^ε + 1) (Kairouz, Oh and Viswanath 2015, arXiv:1311.0776)",
        "too small an ε where each step has ε above 1, too large a one below",
    ),
    Slip(
        "003:608",
        "momentum m ← m + β∇L, without decay",
        "m ← βm + ∇L",
        "gradients of all steps count equally for ever, and nothing converges",
    ),
    Slip(
        "003:625",
        "second moments v ← v + β₂(∇L)² for a “running estimate”",
        "AdaGrad adds (∇L)² without a factor; a running estimate is v ← β₂v + (1−β₂)(∇L)²",
        "steps that only get shorter, although the name promises a running estimate",
    ),
    Slip(
        "003:644–646",
        "Adam's moments without decay and without correction of their bias, the gradient taken at θ − γm",
        "m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², both divided by 1 − βᵗ, the gradient at θ (Kingma and Ba 2015)",
        "another optimizer, which is Nesterov's momentum over AdaGrad's steps",
    ),
)
"""In the order of the sources."""
