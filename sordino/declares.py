"""Declarations of the training loop: post-processing of released values, and public data.

A user declares a stretch of the loop with a `with` statement.

Privacy: both are the user's word, and printed with the claim: `rests on` for the first, `not covered` for the second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sordino.ledger.ledger import Ledger
from sordino.runtime_checks import LotChecks


class Declarations:
    """The declarations that a run takes from its user; `Private` inherits them."""

    _ledger: Ledger
    _checks: LotChecks

    @contextmanager
    def post_processing(self, why: str) -> Iterator[None]:
        """Allows parameters and released gradients to be changed inside, by released values alone; the claim says so.

            with private.post_processing("average of the last steps"):
                average.copy_to(model)

        Args:
            why: in words; printed with the claim, which rests on it.

        Privacy:
            Free, if only released values go into it. That is your word.

        """
        if not isinstance(why, str) or not why.strip():
            raise ValueError(f"{why!r}: say in words what is done to released values; it is printed with the claim")
        self._ledger.declare(f"post-processing of released values, by declaration: {why.strip()}")
        with self._checks.tripwire.post_processing():
            yield

    @contextmanager
    def public(self, name: str) -> Iterator[None]:
        """Allows backward passes and steps inside on data that you declare public; the claim names them as not covered.

            with private.public("ImageNet"):
                loss.backward()
                optimizer.step()

        Args:
            name: which data; printed with the claim.

        Privacy:
            The claim is about the private records alone, and says so.

        """
        self._ledger.disclose(f"steps on data declared public: {name}")
        with self._checks.tripwire.public():
            yield
