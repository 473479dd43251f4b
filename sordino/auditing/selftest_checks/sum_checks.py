"""Sum checks: how far one record moves a sum, who is in it, and whether it is the right sum.

    bound      ‖S(D ∪ x) − S(D)‖ ≤ the promise, for D of 0, 1, 7 and 31 records and x of any size, finite or not
    alone      ‖S({x})‖ ≤ the promise to a hundred-thousandth: one record is summed without the rounding of a crowd
    undrawn    records that were not drawn, exchanged for others, change no bit of the sum; nobody's sum is 0
    oracle     the sum is that of ordinary autograd, one record at a time
    divisor    what is written is the sum over the public number, whatever the number of records

Privacy: what is compared stays here; a finding names the made-up record and nothing of the data.
"""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import torch

from sordino.auditing.neighbouring_records import SelftestRecords, exchange_record
from sordino.auditing.selftest_subject import EXPECTED, Pieces, SeenRelease, Trial, flatten
from sordino.auditing.verdict import SelftestFinding
from sordino.per_sample.captured_backend import Captured
from sordino.per_sample.loop_backend import Loop
from sordino.per_sample.performance_options import PerformanceOptions
from sordino.queries.noisy_sum import NoisySum
from sordino.release.sensitivity import EXACT, Sensitivity

ALONE = 2e-5
"""The relative amount that float32 loses in the norm and the terms of one record."""
_NEAR = 2e-3
"""How far two ways to compute a sum in float32 lie apart, in bounds per root of a record."""
_WRITTEN = 2e-6


def check_sums(pieces: Pieces, company: SelftestRecords) -> list[SelftestFinding]:
    """Runs all sum checks of a selftest and returns the findings."""
    deterministic = without_randomness(pieces, company)
    first = Trial(deterministic, company.records).run([range(min(7, company.from_dataset))])
    if not first.releases[0]:
        return [SelftestFinding("bound", "the query released nothing on a lot of records", holds=False)]
    if not isinstance(first.releases[0][0].sensitivity, Sensitivity):
        return [SelftestFinding("bound", f"no bound is claimed: {first.releases[0][0].sensitivity.reason}")]
    if first.releases[0][0].sensitivity.estimate != EXACT:
        skipped = [SelftestFinding("bound", "norms are estimated, and the event is that of estimated norms")]
        return [*skipped, *_check_divisor(deterministic, company)]
    return [
        *_check_bound(deterministic, company),
        *_check_undrawn(deterministic, company),
        *_check_against_autograd(deterministic, company),
        *_check_divisor(deterministic, company),
    ]


def without_randomness(pieces: Pieces, company: SelftestRecords) -> Pieces:
    """Returns the pieces of a selftest with the layers' randomness off, if there is any, so that sum checks can compare
    sums.

    Worlds are compared record by record, so their coins must not differ.
    """
    lot = list(range(min(7, company.from_dataset)))
    trial = Trial(pieces, company.records).run([lot, lot])
    one, other = ([flatten(passed.value) for passed in lot] for lot in trial.releases)
    if all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True)):
        return pieces
    return dataclasses.replace(pieces, model=copy.deepcopy(pieces.model).eval())


def _check_bound(pieces: Pieces, company: SelftestRecords) -> list[SelftestFinding]:
    """Checks that no record moves a sum further than the sum's sensitivity, beside 0, 1, 7 and 31 others."""
    from_dataset = company.from_dataset
    # Every base is run without the record and with each of the records that a neighbour may hold.
    bases: list[list[int]] = [[], [from_dataset // 2], list(range(min(7, from_dataset))), list(range(from_dataset))]
    added = [*company.names, *range(min(3, from_dataset))]
    worlds = [(base, x) for base in bases for x in added if x not in base]
    alone = Trial(pieces, company.records).run(bases)
    # Later releases of a lot depend on earlier ones, so both worlds are handed the same values.
    handed = [alone.releases[bases.index(base)] for base, _ in worlds]
    with_one = Trial(pieces, company.records).run([[*base, x] for base, x in worlds], handed=handed)
    worst: dict[str, tuple[float, str]] = {"bound": (0.0, ""), "alone": (0.0, "")}
    difference = ""
    # A record alone is summed without the rounding of a crowd, so its check is stricter.
    for (base, x), ours, theirs in zip(worlds, with_one.releases, handed, strict=True):
        name = f"{company.names.get(x, 'a record')} beside {len(base)} others"
        if [p.bound for p in ours] != [p.bound for p in theirs]:
            difference = difference or f"another number of releases, or other bounds, with {name}"
            continue
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert isinstance(one.sensitivity, Sensitivity)
            allowed = 1 + ALONE if not base and place == 0 else 1 + one.sensitivity.rounding
            check = "bound" if base or place else "alone"
            far = one.distance_from(other) / (one.bound * allowed)
            worst[check] = max(worst[check], (far, name))
    findings = [SelftestFinding("bound", difference, holds=False)] if difference else []
    for check, (far, name) in worst.items():
        about = f"the most that a record moved a sum was {far:.6g} of what is allowed ({name})"
        findings.append(SelftestFinding(check, about, holds=far <= 1))
    return findings


def _check_undrawn(pieces: Pieces, company: SelftestRecords) -> list[SelftestFinding]:
    """Checks that records which were not drawn change no bit of a sum, and that an empty lot has the sum 0."""
    pieces = _without_timing(pieces)
    kept = list(range(min(7, company.from_dataset)))
    lots = [[], kept]
    before = Trial(pieces, company.records).run(lots).releases
    # Exchange every record that is not in the lot for one that is not a number, which would spread.
    changed = company.records
    for place in range(len(kept), len(company.records)):
        by = next((k for k, name in company.names.items() if "not a number" in name), kept[0])
        changed = exchange_record(dataclasses.replace(company, records=changed), place, by)
    after = Trial(pieces, changed).run(lots).releases
    same = all(
        _values_equal(a, b) for one, other in zip(before, after, strict=True) for a, b in zip(one, other, strict=True)
    )
    empty = bool(before[0]) and not np.any(flatten(before[0][0].value))
    return [
        SelftestFinding(
            "undrawn", "records that were not drawn changed a sum" if not same else "no bit of a sum", holds=same
        ),
        SelftestFinding(
            "nobody", "the sum of nobody is 0 and is released" if empty else "it is not 0, or stays", holds=empty
        ),
    ]


def _without_timing(pieces: Pieces) -> Pieces:
    """Returns the pieces of a selftest with every formula chosen by shape rather than by timing, so that sum checks
    compare equal computations.

    Two runs that time formulas may choose different ones, which differ in their last bits.
    """
    backend = pieces.backend
    if backend is None or isinstance(backend, Captured):
        options = PerformanceOptions() if backend is None else backend.options
        backend = Captured(dataclasses.replace(options, measure=False, channels_last=bool(options.channels_last)))
    return dataclasses.replace(pieces, backend=backend)


def _check_against_autograd(pieces: Pieces, company: SelftestRecords) -> list[SelftestFinding]:
    """Checks a sum of clipped gradients against ordinary autograd, one record at a time, and against the sum in chunks."""
    finite = [x for x, name in company.names.items() if not any(w in name for w in ("not a", "infinite", "thousand"))]
    everybody = list(range(company.from_dataset))
    lots = [everybody[:1], everybody, [*everybody[:7], *finite]]
    fast = Trial(pieces, company.records).run(lots)
    chunked = Trial(pieces, company.records).run(lots, physical_batch=5)
    slow = Trial(dataclasses.replace(pieces, backend=Loop()), company.records).run(lots)
    findings = []
    for check, other in (("oracle", slow), ("chunks", chunked)):
        far = 0.0
        for lot, ours, theirs in zip(lots, fast.releases, other.releases, strict=True):
            far = max(far, ours[0].distance_from(theirs[0]) / (ours[0].bound * len(lot) ** 0.5))
        what = "the sum by autograd, one record at a time" if check == "oracle" else "the sum in chunks of 5"
        about = f"{what} is {far:.2g} bounds away per root of a record"
        findings.append(SelftestFinding(check, about, holds=far <= _NEAR))
    return findings


def _check_divisor(pieces: Pieces, company: SelftestRecords) -> list[SelftestFinding]:
    """Checks that what is written is the sum divided by one public number, for any number of records."""
    number, far = measure_divisor(pieces, company)
    if number == 0:
        return [SelftestFinding("divisor", "the query makes several releases of one lot into one gradient")]
    # Another query may divide by another public number, as long as it is one.
    right = not isinstance(pieces.query, NoisySum) or abs(number / EXPECTED - 1) <= _WRITTEN
    words = f"lots of 1, 3 and 9 records are divided by one number, to {far:.1e} of it"
    return [
        SelftestFinding(
            "divisor", f"{words}: {number / EXPECTED:.4g} of the public one", holds=far <= _WRITTEN and right
        )
    ]


def measure_divisor(pieces: Pieces, company: SelftestRecords) -> tuple[float, float]:
    """Returns what sums are divided by after release, as sum checks measure it, and how far lots of other sizes are
    from it.

    Both are 0 where a lot's gradient is not one sum.
    """
    lots = [list(range(min(size, company.from_dataset))) for size in (9, 3, 1)]
    trial = Trial(pieces, company.records).run(lots)
    if any(len(_gradient_releases(passed, trial)) != 1 for passed in trial.releases):
        return 0.0, 0.0
    # The first lot gives the number; the others must agree with it.
    number, far = 0.0, 0.0
    for passed, written in zip(trial.releases, trial.written, strict=True):
        one = _gradient_releases(passed, trial)[0]
        value, out = flatten(one.value), one.scale * one.noise_in(written, 1.0) + flatten(one.value)
        size = max(float(np.linalg.norm(value)), 1e-30)
        number = number or float(value @ value) / max(float(value @ out), 1e-30)
        far = max(far, float(np.linalg.norm(out * number - value)) / size)
    return number, far


def _gradient_releases(passed: list[SeenRelease], trial: Trial) -> list[SeenRelease]:
    """Returns the releases of complete gradients, not of tallies."""
    return [one for one in passed if set(one.value) == set(trial.written[0])]


def _values_equal(one: SeenRelease, other: SeenRelease) -> bool:
    return all(torch.equal(one.value[name], other.value[name]) for name in one.value)
