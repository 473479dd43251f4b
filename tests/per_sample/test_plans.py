"""What the engine knows of a model: a structure that never changes, and facts that only the plan's methods write."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch
from torch import nn

from sordino.per_sample import Captured, PerformanceOptions
from sordino.per_sample.engine.module_plan import make_plan
from sordino.per_sample.model_inventory import Inventory
from sordino.per_sample.recording.sample_layout import Layout, Layouts, SharedOperation, UnknownLayout
from tests.per_sample.models import mlp
from tests.per_sample.oracle import square


def test_a_tensor_that_grows_oddly_and_a_layer_never_called_are_told_apart():
    assert UnknownLayout.ODD != UnknownLayout.UNSEEN
    assert not any(layout == unknown for layout in (Layout(-1, 0), Layout(0), None) for unknown in UnknownLayout)


@pytest.mark.parametrize("name", ["structure", "learned", "usage", "pool"])
def test_a_plan_is_not_written_to_from_outside(name):
    plan = make_plan(Inventory(mlp()))
    with pytest.raises(FrozenInstanceError):
        setattr(plan, name, None)


def test_what_a_plan_learned_is_not_changed_in_place():
    plan = make_plan(Inventory(mlp()))
    before = plan.learned
    with pytest.raises(FrozenInstanceError):
        before.trusted = True  # type: ignore[misc]
    plan.learn(trusted=True)
    assert plan.learned.trusted
    assert not before.trusted


def test_usage_is_kept_for_each_kind_of_batch():
    plan = make_plan(Inventory(mlp()))
    short, long = (torch.Size([3]),), (torch.Size([5]),)
    plan.select_lengths(short, also_usage=True)
    everything = plan.usage.used_once
    assert everything == frozenset(range(len(plan.structure.parameters)))
    plan.note_used_again(1)
    plan.select_lengths(long, also_usage=True)
    assert plan.usage.used_once == everything
    plan.select_lengths(short, also_usage=True)
    assert plan.usage.used_once == everything - {1}
    assert plan.usage.used_again == {1}


def test_layouts_of_some_lengths_leave_those_of_others_alone():
    plan, first, other = make_plan(Inventory(mlp())), Layouts({0: [Layout(0)]}), Layouts({0: [Layout(0, 3)]})
    plan.learn(layouts=first)
    assert not plan.has_layouts_by_lengths
    plan.learn_layouts_of_lengths((torch.Size([9]),), other)
    assert plan.learned.layouts is other
    plan.learn(layouts=first)
    plan.select_lengths((torch.Size([7]),), also_usage=False)
    assert plan.learned.layouts is first
    plan.select_lengths((torch.Size([9]),), also_usage=False)
    assert plan.learned.layouts is other


def test_layouts_found_later_come_before_those_found_first():
    operation = SharedOperation("add", (None,), (Layout(0),))
    first = Layouts({0: [Layout(0)], 1: [None]}, {(4, "in", 0): [Layout(1)]})
    second = Layouts({0: [Layout(1)]}, {}, {(-1, 0): [operation], (6, 0): [operation]})
    joined = second.with_defaults(first)
    assert joined.inputs == {0: [Layout(1)], 1: [None]}
    assert joined.arguments == first.arguments
    assert joined.find_called_positions() == {-1, 0, 1, 4, 6}
    assert joined.count_operations_outside_layers() == 1
    assert joined.has_shared_inputs()
    assert not second.has_shared_inputs()


def test_a_trained_model_has_layouts_and_trust_and_a_refused_one_has_neither():
    backend, model, x = Captured(PerformanceOptions(measure=False)), mlp(), torch.randn(5, 4)
    backend.per_sample(model, square, (x,))
    learned = backend._plans.find_or_make_plan(Inventory(model), square, [x]).learned
    assert learned.trusted
    assert learned.layouts is not None
    assert learned.sample_bytes > 0

    def coupled(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return square(model, x - x.mean(0))

    with pytest.raises(Exception, match="own sample"):
        backend.per_sample(model, coupled, (x,))
    refused = backend._plans.find_or_make_plan(Inventory(model), coupled, [x]).learned
    assert not refused.trusted
    assert refused.layouts is None
