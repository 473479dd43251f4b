"""Message guard: refuses a forward pass that sends a message to another rank.

It is refused by the name of the operation, before anything is sent.

A loss over the features of all ranks (`all_gather`), statistics over all ranks, and context parallelism, in which each rank
has a piece of every record, need the other ranks in the middle of a pass. Here a record is computed by one rank alone.

Privacy: what crosses ranks inside a forward pass couples records that no test on one rank can exchange.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from sordino.refusal import Refusal

_MESSAGES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor", "symm_mem")
"""The namespaces in which torch has the operations that send."""
_DIVIDED = "DTensor"  # computes by messages


class _MessageWatch(TorchDispatchMode):
    """Refuses operations that send messages, while it lasts."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one operation, unless it is one that sends messages; that is refused."""
        # A loss that asks other ranks would depend on their records.
        if func.namespace in _MESSAGES or any(kind.__name__ == _DIVIDED for kind in types):
            raise Refusal(
                f"the model or loss_fn sends messages to other ranks ({func.namespace}::{func._opname}).\n"
                "A loss must be made of its own record alone, which one rank computes.\n"
                "Leave the messages out; context parallelism and losses over the records of all ranks are not "
                "supported."
            )
        return func(*args, **(kwargs or {}))


@contextmanager
def refuse_messages() -> Iterator[None]:
    """Guards a forward pass within a `with` block: refuses any message to another rank. Without a process group there
    is nothing to watch.
    """
    if not dist.is_available() or not dist.is_initialized():
        yield
        return
    with _MessageWatch():  # type: ignore[no-untyped-call]
        yield
