"""Sealed values: computed from private records, opened only by a release or at a price.

They can be mapped, released with noise, or exposed at the price of the claim.

A `Sealed` never prints, compares, converts or iterates. It can be mapped by the functions of `FUNCTIONS`, which keep
nothing of what they see; a function of the user's own could, so it gets a value only after it was opened. Its content
leaves in three ways:
  - through `release` in release.py, which adds noise (rule R1);
  - by `expose(reason)`, which voids the claim;
  - by `disclose(name)`, which keeps the claim about everything else and lists the name under what it does not cover.

Privacy: sealing is a guard against accidents, not against an adversary who writes the code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

import torch

T = TypeVar("T")
U = TypeVar("U")

FUNCTIONS: Final[frozenset[Callable[[Any], Any]]] = frozenset(
    {
        *(len, abs, min, max, sum, sorted),
        *(torch.mean, torch.sum, torch.median, torch.min, torch.max, torch.amin, torch.amax, torch.std, torch.var),
        *(
            torch.numel,
            torch.abs,
            torch.square,
            torch.sqrt,
            torch.log,
            torch.exp,
            torch.sort,
            torch.isfinite,
            torch.norm,
        ),
    }
)
"""What a sealed value can be mapped by. They are known by identity, so a function of the same name is not one of them."""


class Seal(Protocol):
    """Where an opening is recorded; a ledger is one."""

    def void(self, reason: str) -> None:
        """Records that there is no guarantee any more."""
        ...

    def disclose(self, name: str) -> None:
        """Records that the guarantee does not cover this."""
        ...


class Sealed(Generic[T]):
    """A private value.

    Privacy:
        It does not print, compare or convert. `disclose` gives the value and the claim lists it; `expose` gives it
        and voids the claim.

    Examples:
        >>> length = Sealed([3, 1, 2]).map(len)
        >>> length
        Sealed(…)

    """

    __slots__ = ("_seal", "_value")

    def __init__(self, value: T, seal: Seal | None = None) -> None:
        self._value = value
        self._seal = seal

    def map(self, function: Callable[[T], U]) -> Sealed[U]:
        """Applies a function of `FUNCTIONS`, such as len or torch.mean, to the sealed value and returns its result,
        sealed too.

        >>> from sordino import Ledger
        >>> losses, ledger = torch.tensor([1.0, 3.0]), Ledger()
        >>> float(Sealed(losses, ledger).map(torch.mean).disclose("mean training loss"))
        2.0
        """
        # Only functions that are known to keep nothing may see the value.
        if not any(function is known for known in FUNCTIONS):
            raise TypeError(
                f"map({_function_name(function)}): a function of one's own could keep what it sees.\n"
                f"Use one of {_known_function_names()}.\n"
                "For any other function open the value first: by .disclose(name), which the claim lists as not covered, or "
                "by .expose(reason)."
            )
        try:
            return Sealed(function(self._value), self._seal)
        except Exception:  # its words could hold the value
            raise TypeError(f"map({_function_name(function)}): this function does not take such a value") from None

    def expose(self, reason: str) -> T:
        """Returns the bare value and voids the claim of its run for this reason."""
        self._require_seal().void(f"a private value was exposed: {_require_reason(reason)}")
        return self._value

    def void(self, reason: str) -> None:
        """Voids the claim of the run that this value belongs to, for this reason."""
        if self._seal is not None:
            self._seal.void(reason)

    def disclose(self, name: str) -> T:
        """Returns the bare value; the claim lists `name` under what it does not cover."""
        self._require_seal().disclose(_require_reason(name))
        return self._value

    def _require_seal(self) -> Seal:
        if self._seal is None:
            raise RuntimeError("this value belongs to no ledger, so its opening cannot be recorded: release it instead")
        return self._seal

    def __repr__(self) -> str:
        return "Sealed(…)"

    def _refuse(self, *_: object) -> NoReturn:
        """Raises TypeError for an operation on a sealed value, and says what may be done with one."""
        raise TypeError(
            "a sealed value is private: use .map(torch.mean) and the like, .disclose(name) to list it as not covered, "
            "or .expose(reason), which voids the claim"
        )

    __float__ = __int__ = __index__ = __bool__ = __len__ = __iter__ = __array__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __mul__ = __rmul__ = __truediv__ = _refuse
    __getitem__ = __reduce__ = __copy__ = __deepcopy__ = _refuse
    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"a sealed value has no .{name}: it is private.\n"
            "The losses of training were computed from records, and no noise was added to them.\n"
            "To log them, release a noisy mean that the claim counts: wrap the query in sd.WithLoss, then read "
            "private.loss.\n"
            "Or use .map(torch.mean).disclose(name), which the claim lists as not covered; .expose(reason) voids the claim."
        )

    def __eq__(self, other: object) -> bool:
        self._refuse()

    def __format__(self, spec: str) -> str:
        return repr(self)


def _require_reason(text: str) -> str:
    """Returns the reason or name for which a sealed value is opened, without surrounding spaces; raises ValueError if
    it has no words.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{text!r}: say in words what is opened, and why; it is printed with the claim")
    return text.strip()


def _function_name(function: object) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _known_function_names() -> str:
    return ", ".join(sorted({_function_name(function) for function in FUNCTIONS}))


def map_sealed(sealed: Sealed[T], function: Callable[[T], U]) -> Sealed[U]:
    """Returns a function of a sealed value, sealed too.

    For functions of the library, which keep nothing of what they see.
    """
    return Sealed(function(sealed._value), sealed._seal)


def reseal(sealed: Sealed[T], seal: Seal) -> Sealed[T]:
    """Returns the value with another seal, for what a query made without knowing a ledger."""
    return Sealed(sealed._value, seal)


def unseal(sealed: Sealed[T]) -> T:
    """Returns the bare value; only release.py may call this."""
    return sealed._value
