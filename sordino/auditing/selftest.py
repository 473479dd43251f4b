"""Selftest: is this mechanism, with its model, loss, query and sampler, the claimed one?

verdict = sordino.auditing.selftest(private, dataset, Poisson(0.01))
print(verdict)

Mechanism and sampler are tested apart. Exact facts of arithmetic are tested exactly; what is random, by e-values with one
error budget, so that a right mechanism is accused once in a million selftests at most.

Privacy: all that is told of the dataset is whether something was found, which is about the code. The records it uses are
copies; the user's ledger, model and streams are untouched.
"""

from __future__ import annotations

import time

from sordino import validate
from sordino.auditing.neighbouring_records import make_selftest_records
from sordino.auditing.selftest_checks.ledger_checks import check_ledger
from sordino.auditing.selftest_checks.noise_checks import check_noise
from sordino.auditing.selftest_checks.release_checks import check_release
from sordino.auditing.selftest_checks.sampler_checks import check_sampler
from sordino.auditing.selftest_checks.sum_checks import check_sums
from sordino.auditing.selftest_subject import Pieces
from sordino.auditing.verdict import SelftestFinding, Verdict
from sordino.lots.loading import MapStyle, count_records
from sordino.private import Private
from sordino.rng.global_generators import preserve_generators
from sordino.sampling.sampler import Sampler

ERROR = 1e-6


def selftest(
    private: Private | Pieces, dataset: MapStyle, sampler: Sampler | None = None, *, error: float = ERROR
) -> Verdict:
    """Runs the selftest of a mechanism, before a run begins or in between, and returns its verdict.

    It tests the model as it is now, its loss, query, penalty, backend and sampler.

    Args:
        private: a run, or its pieces.
        dataset: some of its records are used; nothing of them is in the verdict's words.
        sampler: how lots will be drawn.
        error: the chance that a right run fails.

    Returns:
        A `Verdict`: what was tried, what was found.

    Privacy:
        The test runs on records and is not released by itself; what you publish of a verdict should be whether it
        passed.

    Examples:
        >>> import torch, sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> private = sd.Private(torch.nn.Linear(3, 1), lambda model, x: model(x).square().sum(1), query)
        >>> data = torch.utils.data.TensorDataset(torch.randn(100, 3))
        >>> selftest(private, data, sd.Poisson(rate=0.1)).passed
        True

    """
    began = time.perf_counter()
    error = validate.fraction("error", error)
    # The pieces are tested on copies, in ledgers of their own; the run itself is not charged.
    pieces = Pieces.of(private, sampler) if isinstance(private, Private) else private
    # The user's own code must not notice that it was run: its generators are put back.
    with preserve_generators():
        records = make_selftest_records(dataset)
        findings: list[SelftestFinding] = [
            *check_release(),
            *check_sums(pieces, records),
            *check_noise(pieces, records),
            *check_ledger(pieces, dataset, records),
            *check_sampler(pieces.sampler, count_records(dataset)),
        ]
    return Verdict(tuple(findings), error, time.perf_counter() - began)
