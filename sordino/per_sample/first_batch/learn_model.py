"""Fills in a model's plan from its first batch.

It finds where the layers have their samples, which memory format is faster, and whether the engine's answers are
autograd's. Dropout is off where answers are compared; generators and the vectors of spectral normalisations are put
back.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from sordino.per_sample.batch_structure import batch_size, take_rows
from sordino.per_sample.engine.session import Session
from sordino.per_sample.first_batch import memory_format
from sordino.per_sample.first_batch.find_layouts import LARGER_RUN, find_sample_layouts
from sordino.per_sample.first_batch.verify import verify_model
from sordino.per_sample.first_batch.without_dropout import without_dropout
from sordino.per_sample.physical_batch import release_free_memory
from sordino.per_sample.recording.sample_layout import Layouts
from sordino.per_sample.recording.tape import Checkpointed
from sordino.rng.global_generators import preserve_generators


def find_layouts_again(session: Session, batch: Any) -> Layouts:
    """Returns where the layers of a model that was learned before have their samples on a batch of another length."""
    more = take_rows(batch, torch.arange(LARGER_RUN) % batch_size(batch))
    kept, without = session.keep_vectors(), without_dropout(session.modules, everything=False)
    with preserve_generators(), kept, without:
        return find_sample_layouts(session, more)


def learn_from_first_batch(session: Session, batch: Any) -> None:
    """Learns a model: fills in the session's plan from a first batch."""
    plan, options = session.plan, session.options
    # Everything is learned on three records, if need be the same ones again, and leaves no trace in the random
    # generators.
    more = take_rows(batch, torch.arange(LARGER_RUN) % batch_size(batch))
    kept = session.keep_vectors()
    with preserve_generators(), kept, torch.backends.cudnn.flags(enabled=False):
        with without_dropout(session.modules, everything=False):
            plan.learn(layouts=find_sample_layouts(session, more))
        # Choose the memory format of convolutions: as the options say, by timing, or by the model's shapes.
        try:
            if options.channels_last is not None:
                plan.learn(channels_last=options.channels_last)
            elif plan.structure.has_convolutions and options.measure and not options.two_pass:
                plan.learn(channels_last=memory_format.channels_last_is_faster(session, batch, more))
            elif plan.structure.has_convolutions and not options.two_pass:
                plan.learn(channels_last=memory_format.accepts_channels_last(session, more))
            elif options.measure and not options.two_pass and options.verify:
                with suppress(Checkpointed):  # layers choose on a real batch, before the check runs on three samples
                    session.run_passes(take_rows(batch, slice(0, memory_format.TRIAL))).norms()
            # Compare norms and sum with autograd before the plan is trusted.
            if options.verify:
                verify_model(session, more)
            else:
                plan.learn(trusted=True)
        except BaseException:
            plan.learn(layouts=None)  # nothing is trusted yet
            raise
    session.workspace.release_rows()  # what the measurements wrote
    release_free_memory()
