"""Slips of the sources: what is printed, and what is right. Those that weaken privacy are in `not_private` too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Slip:
    """Something that a source prints and that is not so."""

    line: str
    """SOURCE:LINE."""
    prints: str
    right: str
    follows: str
    """What follows from it for who copies it."""


SLIPS: tuple[Slip, ...] = (
    Slip(
        "000:126",
        "noise inside the sum over the lot, and the sum divided by the number of records in the lot",
        "noise once for each lot, N(0, σ²R²I), and the sum divided by the expected size L",
        "noise √|I| times as large as accounted for, none at all in an empty lot, and a divisor that tells the lot's size",
    ),
    Slip(
        "000:224",
        "(ε, δ)-differentially private “for any σ > 0”",
        "for any δ > 0: σ is what the theorem chooses (Abadi et al. 2016, theorem 1)",
        "read as printed, no noise would do",
    ),
    Slip(
        "001:675",
        "ε = 1.769 under table 4.7, which is about CIFAR-10 over 30 epochs",
        "1.729, the ε of CIFAR-10 over 30 epochs; 1.769 is MNIST's. Neither is one: lots by rank have no guarantee",
        "another number for the same run than under the tables beside it",
    ),
    Slip(
        "001:693",
        "ε = 2.268 under figure 4.15, which is over 30 epochs",
        "1.729; 2.268 belongs to 50 epochs",
        "another number for the same run than under the tables beside it",
    ),
    Slip(
        "001:1326",
        "C = 1 over table A.1",
        "C = 5: table 5.1 has other numbers at C = 1, and those of A.1 are near table 4.3, which is of C = 5",
        "36 % for 51 % at learning rate 0.1 for who repeats it as printed",
    ),
    Slip("001:977", "“as table 5.3 shows”", "table 5.1: there is no table 5.3", "nothing"),
    Slip(
        "002:116",
        "the number of batches in an epoch is of the order of the number of epochs, O(L/N) = O(T)",
        "N/L batches make an epoch: N/L ≈ E, so L ≈ √N where E is the number of epochs; T counts steps",
        "the printed rule would make lots as large as the data",
    ),
    Slip(
        "002:164",
        "δ varies between 10⁻² and 10⁻²",
        "between 10⁻⁵ and 10⁻² (Abadi et al. 2016, figure 4)",
        "nothing",
    ),
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
        "an argmin knows nothing of δ",
    ),
    Slip(
        "003:67",
        "σ = (√(2+u) + √u) Δ/ε",
        "σ = (√(2+u) + √u) Δ/(2√ε)",
        "too little noise above ε = 4, too much below",
    ),
    Slip(
        "003:608",
        "momentum m ← m + β∇L, without decay",
        "m ← βm + ∇L",
        "gradients of all steps count alike for ever, and nothing converges",
    ),
    Slip(
        "003:625",
        "second moments v ← v + β₂(∇L)² for a “running estimate”",
        "AdaGrad adds (∇L)² without a factor; a running estimate is v ← β₂v + (1−β₂)(∇L)²",
        "a step that only shrinks, under a name that says otherwise",
    ),
    Slip(
        "003:643",
        "Adam's moments without decay and without correction of their bias, the gradient taken at θ − γm",
        "m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², both divided by 1 − βᵗ, the gradient at θ (Kingma and Ba 2015)",
        "another optimizer, which is Nesterov's momentum over AdaGrad's steps",
    ),
)
"""In the order of the sources."""
