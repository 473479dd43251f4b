"""Replays: the `Replay` permission, by which a loaded state may use its noise again, and what it opens of a state.

Privacy: a run's secret file holds the key of its noise, and a saved state a position. Whatever was released after the
state was saved used the values from there on. Used again on the same sums, bit by bit, they repeat a release, which
tells nobody anything new; used again on any other sum, they give away the difference of the two sums, without any
noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sordino import environment, validate
from sordino.noise_key import NoiseKey, read_secret
from sordino.refusal import Refusal
from sordino.rng.streams import CIPHER, Rng

SAVED_FORMAT = 4
"""The format of the states that `Private.state_dict` returns."""
_FORMAT_WITH_KEY = 3
"""The format of version 0.2, whose states hold key and memory in the clear. It can still be loaded."""
_NOT_REPEATABLE = """this state was saved while the run still measured which formulas are fastest.
A replay may choose others, which round differently, and then one noise hides two sums.
Load it without replay=. To have states that can be replayed, call private.save_secret(folder) before the first is saved."""


@dataclass(frozen=True)
class Replay:
    """Permission to use a saved state's noise again, given to `private.load_state_dict(state, replay=…)`.

    Without it a loaded state goes on with a new key, which is always right. With it you promise that whatever was
    released after the state was saved is computed again from the same parameters, data, settings, code and machine, or
    was never released at all. The claim lists that promise as not covered, unless it was `entered`: `sordino resume`
    keeps it, by a write-ahead ledger and by comparing every field of the configuration.

    A state can be replayed if the run's key was saved before it. From then on the run measures nothing: which formula
    computes a gradient, and how many records are processed at once, follows from shapes alone, in the run and in its
    replay.

    Args:
        because: why every bit will be the same; printed with the claim.
        secret: where `private.save_secret(folder)` wrote the run's key, or what `private.secret_state()` returned. It
            may be left out where the `Private` has that key already, as one with the same `seed` does.
        entered: for `sordino resume` alone.

    Privacy:
        A promise of yours. If it is broken, one noise hides two sums, and their difference is bare.

    Examples:
        >>> import sordino as sd
        >>> sd.Replay("nothing was released after the state was saved").because
        'nothing was released after the state was saved'

    """

    because: str
    entered: bool = False
    secret: str | Path | Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.because, str) or not self.because.strip():
            raise ValueError(f"because={self.because!r}: say in words why every bit will be the same")


def refuse_unknown_format(state: Mapping[str, Any]) -> None:
    """Raises an error for a state to be loaded or replayed that no version from 0.2 on has saved."""
    validate.instance("state", state, Mapping, "a state, as Private.state_dict() returns it")
    if state.get("format") not in (SAVED_FORMAT, _FORMAT_WITH_KEY):
        raise ValueError(
            f"state of format {state.get('format')!r}: need {SAVED_FORMAT}, as saved by Private.state_dict()"
        )


def open_saved_state(
    state: Mapping[str, Any],
    replay: Replay | None,
    own_key: Callable[[], NoiseKey],
    *,
    device: torch.device,
    measures: bool,
    by_shapes: bool,
) -> tuple[tuple[Rng, Rng, Rng] | None, Any]:
    """Returns what a saved state hides: its three streams, if it is replayed by permission, and what the sampler
    remembered.

    Args:
        state: what `Private.state_dict` returned.
        replay: the permission to use its noise again; None for a run that goes on with a new key.
        own_key: returns the key of the run that loads the state, for a replay that brings none.
        device: where the model of that run is.
        measures: whether the backend of that run still measures which formulas are fastest.
        by_shapes: whether that run chooses formulas and batch sizes by shapes alone.

    Returns:
        The streams root, noise and forward at their saved positions, or None without a replay; and the memory of the
        sampler, or None where it remembers nothing or where this cannot be read.

    Raises:
        WrongKey: if the secret of the replay is not that of the state.
        Refusal: if the replay could come to other bits, because the run chose by a stopwatch after the state, or because
            code, libraries, processor, device, threads or switches of precision are others, or because sums on a device
            have no fixed order.

    """
    # States of 0.2 held their keys in the clear; newer ones hold none.
    has_key_inside = state["format"] == _FORMAT_WITH_KEY
    if replay is None:
        return None, state["memory"] if has_key_inside else None
    # States of version 0.2 hold the keys in the clear.
    if has_key_inside:
        streams, memory = tuple(Rng.replay(state[name]) for name in ("root", "noise", "forward")), state["memory"]
        is_repeatable = not measures and (by_shapes or state["physical_batch"] is not None)
    else:
        # Open the encrypted part with the key of the replay, or with the run's own: of the same seed, or of this very run.
        secret = replay.secret
        if secret is None:
            key = own_key()
        else:
            key = NoiseKey.from_table(secret if isinstance(secret, Mapping) else read_secret(secret))
        opened = key.decrypt(state["encrypted"])
        streams, memory = key.streams_at(opened["counters"], opened.get("noise_cipher", CIPHER)), opened["memory"]
        is_repeatable = state["repeatable"]
    # A replay is allowed only where every bit comes out the same.
    if not is_repeatable and not replay.entered:
        raise Refusal(_NOT_REPEATABLE)
    disorder = environment.find_nondeterminism(device)
    if disorder and not replay.entered:
        raise Refusal(
            f"{disorder}.\n"
            "A replay may come to another sum, and then one noise hides two sums.\n"
            "Save and replay under torch.use_deterministic_algorithms(True), or load the state without replay=."
        )
    difference = environment.describe_difference(state.get("environment") or {}, environment.current_environment())
    if difference and not has_key_inside and not replay.entered:
        raise Refusal(
            f"this state was saved elsewhere: {difference}.\n"
            "A replay here may round differently, and then one noise hides two sums.\n"
            "Replay it where it was saved, or load it without replay=: it goes on with a new key."
        )
    root, noise, forward = streams
    return (root, noise, forward), memory
