"""Fills in a model's plan from its first batch.

It finds where the layers have their samples, which memory format is faster, and whether the engine's answers are
autograd's. Dropout is off where answers are compared; generators and the vectors of spectral normalisations are put
back.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from sordino.per_sample.batch_structure import size, take
from sordino.per_sample.engine.sample_layout import Layouts
from sordino.per_sample.engine.session import Session
from sordino.per_sample.engine.tape import Checkpointed
from sordino.per_sample.first_batch import memory_format
from sordino.per_sample.first_batch.find_layouts import MORE, layouts_of
from sordino.per_sample.first_batch.verify import verify
from sordino.per_sample.first_batch.without_dropout import without_dropout
from sordino.per_sample.physical_batch import give_back
from sordino.rng.global_generators import left_as_they_were


def layouts_again(session: Session, batch: Any) -> Layouts:
    """Returns where the layers have their samples on a batch of another length."""
    more = take(batch, torch.arange(MORE) % size(batch))
    kept, without = session.vectors_kept(), without_dropout(session.modules, everything=False)
    with left_as_they_were(session.cuda_devices()), kept, without:
        return layouts_of(session, more)


def settle(session: Session, batch: Any) -> None:
    """Fills in the session's plan from a first batch."""
    plan, options = session.plan, session.options
    # Everything is learned on three records, if need be the same ones again, and leaves no trace in the random
    # generators.
    more = take(batch, torch.arange(MORE) % size(batch))
    kept = session.vectors_kept()
    with left_as_they_were(session.cuda_devices()), kept, torch.backends.cudnn.flags(enabled=False):
        with without_dropout(session.modules, everything=False):
            plan.layouts = layouts_of(session, more)
        # Choose the memory format of convolutions: as the options say, by timing, or by the model's shapes.
        try:
            if options.channels_last is not None:
                plan.channels_last = options.channels_last
            elif plan.has_convolutions and options.measure and not options.two_pass:
                plan.channels_last = memory_format.faster(session, batch, more)
            elif plan.has_convolutions and not options.two_pass:
                plan.channels_last = memory_format.accepts_last(session, more)
            elif options.measure and not options.two_pass and options.verify:
                with suppress(Checkpointed):  # layers choose on a real batch, before the check runs on three samples
                    session.run(take(batch, slice(0, memory_format.TRIAL))).norms()
            # Compare norms and sum with autograd before the plan is trusted.
            if options.verify:
                verify(session, more)
            else:
                plan.trusted = True
        except BaseException:
            plan.layouts = None  # nothing is trusted yet
            raise
    session.workspace.forget_rows()  # what the measurements wrote
    give_back()
