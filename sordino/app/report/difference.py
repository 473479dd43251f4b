"""Finds where two runs begin to differ: in accuracy, in parameters, in what they predict.

Of a network θ trained from θ₀ beside a reference ψ trained from the same θ₀:

    relative distance   ‖θ − ψ‖ / ‖ψ − θ₀‖
    cosine              ⟨θ − θ₀, ψ − θ₀⟩ / (‖θ − θ₀‖ ‖ψ − θ₀‖)
    disagreement        the share of test records that θ and ψ put in different classes

Privacy: all of it is computed from released networks and public test records.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from sordino import validate
from sordino.app.report import networks
from sordino.app.report.evidence import Evidence
from sordino.app.report.networks import Network, TestedNetwork
from sordino.app.runs.directory import Run


@dataclass(frozen=True)
class Amounts:
    """The amounts by which two runs must differ to be called different."""

    accuracy: float = 0.01
    loss: float = 0.05
    """Relative to the reference's."""
    parameters: float = 0.1
    predictions: float = 0.01

    def __post_init__(self) -> None:
        for name in ("accuracy", "loss", "parameters", "predictions"):
            validate.positive(name, getattr(self, name))


@dataclass(frozen=True)
class Difference:
    """How one run differs from the reference; a field is None if it cannot be known, and `notes` says why."""

    name: str
    same_start: bool | None
    accuracy_step: int | None
    """The first evaluation of both at which the accuracies differ by more than the amount; None: at no one."""
    loss_step: int | None = None
    parameters_step: int | None = None
    predictions_step: int | None = None
    distance: float | None = None
    relative: float | None = None
    cosine: float | None = None
    agreement: float | None = None
    only_reference_right: int | None = None
    only_this_right: int | None = None
    distances: dict[int, float] = field(default_factory=dict)
    """Relative distance by step, where both kept their networks."""
    disagreements: dict[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def find_difference(reference: Evidence, other: Evidence, amounts: Amounts) -> Difference:
    """Returns the difference between two runs: where `other` begins to differ from `reference`."""
    # Updates can only be compared if both runs started from the same network.
    notes: list[str] = []
    start, other_start = networks.initial_network(reference), networks.initial_network(other)
    known = start is not None and other_start is not None
    same_start = networks.are_equal(start, other_start) if start is not None and other_start is not None else None
    if same_start is False:
        notes.append("they did not start from the same network, so their updates are not compared")
    if not known:
        notes.append("a run does not hold its initial network")
    compared_fields: dict[str, object] = {}
    # Compare the final networks, and those kept on the way.
    ends = networks.final_network(reference), networks.final_network(other)
    if ends[0] is None or ends[1] is None:
        notes.append("a run holds no final network: it has not finished")
    elif not networks.have_same_shapes(*ends):  # type: ignore[arg-type]
        notes.append("their networks have different tensors, so their parameters are not compared")
    elif same_start and start is not None:
        compared_fields |= _compare_networks(start, ends[0], ends[1])
        compared_fields |= _compare_on_the_way(start, reference, other, amounts)
    # Compare the predictions on the test records.
    if ends[0] is not None and ends[1] is not None and all(_classifies(run) for run in (reference, other)):
        compared_fields |= _compare_predictions(reference, other, ends[0], ends[1], amounts, notes)
    curves = _first_differing_evaluations(reference, other, amounts)
    return Difference(other.name, same_start, *curves, notes=notes, **compared_fields)  # type: ignore[arg-type]


def _first_differing_evaluations(
    reference: Evidence, other: Evidence, amounts: Amounts
) -> tuple[int | None, int | None]:
    """Returns the first difference between two runs in their common evaluations, of accuracies and of losses."""
    # Only evaluations that both made can be compared.
    other_rows = {row.step: row for row in other.rows}
    pairs = [(row, other_rows[row.step]) for row in reference.rows if row.step in other_rows]
    accuracies = {
        one.step: abs(one.test_accuracy - two.test_accuracy)
        for one, two in pairs
        if one.test_accuracy is not None and two.test_accuracy is not None
    }
    losses = {one.step: abs(one.test_loss - two.test_loss) / abs(one.test_loss or 1.0) for one, two in pairs}
    # A difference of the amount itself is not more than it, whatever rounding says.
    return _first_step_above(accuracies, amounts.accuracy * (1 + 1e-9)), _first_step_above(
        losses, amounts.loss * (1 + 1e-9)
    )


def _classifies(run: Evidence) -> bool:
    return all(row.test_accuracy is not None for row in run.rows)


def _compare_networks(start: Network, one: Network, other: Network) -> dict[str, object]:
    """Returns the difference between two networks trained from the same start: distance, relative distance
    and cosine.
    """
    # Updates are compared, not parameters, so that the common start does not count.
    origin = networks.flatten(start)
    a, b = networks.flatten(one) - origin, networks.flatten(other) - origin
    distance, lengths = float((a - b).norm()), (float(a.norm()), float(b.norm()))
    return {
        "distance": distance,
        "relative": distance / lengths[0] if lengths[0] else None,
        "cosine": float(a @ b) / (lengths[0] * lengths[1]) if all(lengths) else None,
    }


def _common_networks(reference: Evidence, other: Evidence) -> list[tuple[int, Network, Network]]:
    """Returns the networks that both runs kept at the same step, in which their difference is measured."""
    # Networks are kept at evaluations, if the run was asked to.
    reference_trace, other_trace = Run(reference.folder).traced_networks(), Run(other.folder).traced_networks()
    pairs = (
        (step, networks.load_network(reference_trace[step]), networks.load_network(other_trace[step]))
        for step in sorted(reference_trace)
        if step in other_trace
    )
    return [(step, one, two) for step, one, two in pairs if one is not None and two is not None]


def _compare_on_the_way(start: Network, reference: Evidence, other: Evidence, amounts: Amounts) -> dict[str, object]:
    """Returns the difference between two runs in their parameters on the way: relative distances, and the first step at
    which these exceed the amount.
    """
    distances = {}
    for step, one, two in _common_networks(reference, other):
        relative = _compare_networks(start, one, two)["relative"]
        if isinstance(relative, float):
            distances[step] = relative
    return {"distances": distances, "parameters_step": _first_step_above(distances, amounts.parameters)}


def _compare_predictions(
    reference: Evidence, other: Evidence, one: Network, two: Network, amounts: Amounts, notes: list[str]
) -> dict[str, object]:
    """Returns the difference between two runs in their predictions for the test records; adds a note if they cannot be
    compared.
    """
    try:
        # Both must have been tested on the same records.
        reference_tests, other_tests = TestedNetwork(reference), TestedNetwork(other)
    except (ValueError, OSError) as error:
        notes.append(f"predictions are not compared: {error}")
        return {}
    if not torch.equal(reference_tests.labels, other_tests.labels):
        notes.append("predictions are not compared: the runs were tested on different records")
        return {}
    # Final networks first, then those that both kept on the way.
    a, b, labels = reference_tests.predict(one), other_tests.predict(two), reference_tests.labels
    disagreements = {
        step: float((reference_tests.predict(first) != other_tests.predict(second)).double().mean())
        for step, first, second in _common_networks(reference, other)
    }
    return {
        "agreement": float((a == b).double().mean()),
        "only_reference_right": int(((a == labels) & (b != labels)).sum()),
        "only_this_right": int(((a != labels) & (b == labels)).sum()),
        "disagreements": disagreements,
        "predictions_step": _first_step_above(disagreements, amounts.predictions),
    }


def _first_step_above(values: dict[int, float], amount: float) -> int | None:
    """Returns the first step at which a value exceeds the amount, or None."""
    return next((step for step, value in values.items() if value > amount), None)
