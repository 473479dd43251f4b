"""What a model's first batch teaches: where its layers have their samples, which memory format is faster, and whether
the engine's answers are autograd's. Randomness is off meanwhile and the generators are put back.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import nn

from sordino.gradients.batch import size, take
from sordino.gradients.captured.buffers import forget_rows
from sordino.gradients.captured.options import PerformanceOptions
from sordino.gradients.captured.plan import Plan
from sordino.gradients.captured.tape import Checkpointed
from sordino.gradients.first_batch import memory_format as formats
from sordino.gradients.first_batch.layouts import layouts_of
from sordino.gradients.first_batch.trial import MORE, Run, Trial, calm
from sordino.gradients.first_batch.verify import verify
from sordino.gradients.physical_batch import give_back
from sordino.gradients.protocol import LossFn


def settle(
    plan: Plan,
    model: nn.Module,
    modules: list[nn.Module],
    loss_fn: LossFn,
    batch: Any,
    options: PerformanceOptions,
    captured: Run,
) -> None:
    """Fill in a plan from a first batch."""
    trial = Trial(plan, model, modules, loss_fn, options, captured)
    rows = torch.arange(MORE) % size(batch)
    more = take(batch, rows)
    devices = sorted(
        {p.device.index for p in model.parameters() if p.device.type == "cuda" and p.device.index is not None}
    )
    with torch.random.fork_rng(devices), torch.backends.cudnn.flags(enabled=False):
        with calm(modules, everything=False):
            plan.layouts = layouts_of(plan, model, modules, loss_fn, more)
        try:
            if options.channels_last is not None:
                plan.channels_last = options.channels_last
            elif plan.has_convolutions and options.measure and not options.two_pass:
                plan.channels_last = formats.faster(trial, batch)
            elif plan.has_convolutions and not options.two_pass:
                plan.channels_last = formats.accepts_last(trial, more)
            elif options.measure and not options.two_pass and options.verify:
                with suppress(Checkpointed):  # layers choose on a real batch, before the check runs on three samples
                    trial.run(take(batch, slice(0, formats.TRIAL))).norms()
            if options.verify:
                verify(trial, more)
            else:
                plan.trusted = True
        except BaseException:
            plan.layouts = None  # nothing is trusted yet
            raise
    forget_rows()  # what the measurements wrote
    give_back()
