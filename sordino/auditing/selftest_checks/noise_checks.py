"""Noise checks: the scale for every tensor, independence, and equality with the stream.

    exact         from a known key: ‖noise‖ over ‖the stream's values‖ is the multiplier times the promise, to a millionth
    scale         e-values of empty lots: all numbers, and those of each tensor by themselves
    independence  between lots, between neighbours in a lot, between its halves, and between two runs

An empty lot must be noised like any other.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.auditing import e_values
from sordino.auditing.neighbouring_records import SelftestRecords
from sordino.auditing.selftest_checks.sum_checks import measure_divisor
from sordino.auditing.selftest_subject import Pieces, SeenRelease, Trial
from sordino.auditing.verdict import SelftestFinding
from sordino.release.noise import Gaussian, Laplace
from sordino.release.vectors import Grads
from sordino.rng.streams import DEVICE_CIPHER, Rng

SEED = 20_161
_ENOUGH = 400_000
"""Numbers at which noise that is 1 % off is seen."""
_MOST_LOTS = 64
_EXACT = 2e-6
"""The relative difference that float32's rounding of sums of squares may make."""


def check_noise(pieces: Pieces, company: SelftestRecords) -> list[SelftestFinding]:
    """Runs all noise checks of a selftest and returns the findings."""
    first = Trial(pieces, company.records, seed=SEED).run([[], []], noisy=True)
    # Only the release of complete gradients is looked at, not that of tallies.
    named = set(first.written[0])
    gradient_releases = [[p for p in passed if set(p.value) == named] for passed in first.releases]
    # Some queries have no noise to test; each case is named.
    if not first.written[0] or not gradient_releases[0]:
        return [SelftestFinding("empty lot", "an empty lot was given no noise", holds=False)]
    if len(gradient_releases[0]) != 1:
        return [SelftestFinding("noise", "the query makes several releases of one lot into one gradient")]
    kind = gradient_releases[0][0].noise
    if not kind.multiplier:
        return [SelftestFinding("noise", "none is asked for, and none is claimed")]
    if not isinstance(kind, Gaussian | Laplace):
        return [SelftestFinding("noise", f"{type(kind).__name__} is not known here")]
    number, _ = measure_divisor(pieces, company)
    return [
        *_check_exactly(first, gradient_releases[0][0], kind, number),
        *_check_statistically(pieces, company, named, kind, number),
    ]


def _check_exactly(trial: Trial, passed: SeenRelease, kind: Gaussian | Laplace, number: float) -> list[SelftestFinding]:
    """Makes the exact noise check: noise from a known key is multiplier × sensitivity times the stream's values."""
    # The noise as it was written, over its scale, compared with the same stream drawn again.
    seen = passed.noise_in(trial.written[0], number)
    stream = Rng.from_seed(SEED).child("noise")
    if trial.private.open_for_audit().noise_state["cipher"] == DEVICE_CIPHER:  # noise that the model's device made
        stream = stream.with_device_cipher()
    wide = any(value.dtype.itemsize == 8 for value in passed.value.values())
    if isinstance(kind, Laplace):
        values = stream.laplace(len(seen)).numpy()
    else:
        values = stream.normal(len(seen), torch.float64 if wide else torch.float32).double().numpy()
    ratio = float(np.linalg.norm(seen) / np.linalg.norm(values))
    about = f"from a known key the noise is {ratio:.7f} of multiplier × promise"
    return [SelftestFinding("noise, exact", about, holds=abs(ratio - 1) <= _EXACT)]


def _check_statistically(
    pieces: Pieces, company: SelftestRecords, named: set[str], kind: Gaussian | Laplace, number: float
) -> list[SelftestFinding]:
    """Checks the noise of empty lots statistically, by e-values: its scale, and its independence in several directions."""
    trial = Trial(pieces, company.records)
    # Enough lots to see noise that is 1 % off.
    size = sum(p.numel() for name, p in trial.model.named_parameters() if name in named)
    lots = min(_MOST_LOTS, max(4, 2 * math.ceil(_ENOUGH / size / 2)))
    trial.run([[]] * lots, noisy=True)
    seen = [
        _noise_of_lot(passed, written, named, number)
        for passed, written in zip(trial.releases, trial.written, strict=True)
    ]
    other = Trial(pieces, company.records).run([[]], noisy=True)
    test = e_values.log_e_of_normal_scale if isinstance(kind, Gaussian) else e_values.log_e_of_laplace_scale
    # The scale of all numbers together, and of each tensor by itself.
    findings = [_make_finding("noise, all", test(np.concatenate(seen)), "scale of all numbers")]
    start = 0
    for name, value in trial.releases[0][0].value.items():
        piece = np.concatenate([one[start : start + value.numel()] for one in seen])
        findings.append(_make_finding(f"noise, {name}", test(piece), "scale of this tensor"))
        start += value.numel()
    if isinstance(kind, Laplace):
        return [*findings, SelftestFinding("noise, independence", "of Laplace noise is not tested")]
    # Independence between lots, neighbours, halves of a lot, and two runs.
    even, odd = np.concatenate(seen[0::2]), np.concatenate(seen[1::2])
    runs = _noise_of_lot(other.releases[0], other.written[0], named, number)
    pairs = {
        "between lots": (even, odd),
        "between neighbours": _join_pairs([(one[0::2], one[1::2]) for one in seen]),
        "between halves": _join_pairs([(one[: size // 2], one[size // 2 :]) for one in seen]),
        "between runs": (seen[0], runs),
    }
    for name, (x, y) in pairs.items():
        n = min(len(x), len(y))
        findings.append(_make_finding(f"noise, {name}", e_values.log_e_of_normal_pairs(x[:n], y[:n]), "correlation"))
    return findings


def _join_pairs(some: list[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> tuple[e_values.Values, e_values.Values]:
    """Returns pairs of vectors, each cut to equal length, joined into one pair."""
    cut = [(x[: min(len(x), len(y))], y[: min(len(x), len(y))]) for x, y in some]
    return np.concatenate([x for x, _ in cut]), np.concatenate([y for _, y in cut])


def _noise_of_lot(passed: list[SeenRelease], written: Grads, named: set[str], number: float) -> NDArray[np.float64]:
    one = next(p for p in passed if set(p.value) == named)
    return one.noise_in(written, number)


def _make_finding(check: str, log_e: float, what: str) -> SelftestFinding:
    return SelftestFinding(check, f"{what}: e-value {math.exp(min(log_e, 700)):.2g}", log_e=log_e)
