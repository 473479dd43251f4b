"""Shape-independent draws: every element of a random tensor is the same number.

A batch of three draws other numbers than three batches of one, so the two cannot be compared as they are. Under
`SteadyDraws` every normal number is one value, every uniform one another, every coin falls alike: whatever shape is asked
for, and in whatever order, a record meets the same. Torch's operations only; numpy's and Python's draws are not seen here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_FILLS = frozenset(
    (
        "uniform_",
        "normal_",
        "exponential_",
        "random_",
        "geometric_",
        "cauchy_",
        "log_normal_",
        "randint",
        "randint_like",
    )
    + ("rand", "rand_like", "randn", "randn_like")
)
"""Draws whose elements have one law."""


_UNIFORM = (("from", 0.0), ("to", 1.0))
"""What `uniform_` is given, in order, and by default."""

LOW_DRAWS, HIGH_DRAWS = 1, 10
"""Seeds whose uniform draws are about 0.06 and 0.66: under the first one dropout keeps everything and a mask of a share
of the tokens hides all of them, under the second it is often the other way round."""


class SteadyDraws(TorchDispatchMode):
    """While it lasts, random tensors are constants that this seed gives."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed = seed
        self.has_unknown_draws = False  # something was drawn that has no constant form

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one operation; if it draws random numbers, replaces them by constants of the seed."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        name, kind = func._schema.name.removeprefix("aten::"), func._overloadname
        # Operations whose elements all have one law get one value of that law.
        if name in _FILLS:
            return self._fill_with_one_draw(func, name, args, kwargs)
        # Coins, dropout and choices compare one uniform number with each element's own probability.
        if name == "bernoulli_":
            p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
            return args[0].copy_(self._draw_uniform(args[0]) < p)
        if name == "bernoulli" and kind == "default":
            return (self._draw_uniform(args[0]) < args[0]).to(args[0].dtype)
        if name == "native_dropout" and args[2] is not False:
            kept = (self._draw_uniform(args[0]) >= args[1]).expand_as(args[0])
            return args[0] * kept / (1 - args[1]), kept.clone()
        if name == "multinomial" and args[1] == 1:
            chances = args[0].cumsum(-1)
            u = self._draw_uniform(args[0]).double()
            return (chances < u * chances[..., -1:]).sum(-1, keepdim=True).clamp(max=args[0].shape[-1] - 1)
        if name == "normal" and kind != "float_float":
            mean, std = (*args, kwargs.get("std", 1.0))[:2]
            return mean + std * torch.empty((), dtype=torch.float64).normal_(generator=self._new_generator()).item()
        # This draw has no constant form: it is made as it is, and the caller is told.
        self.has_unknown_draws = True
        return func(*args, **kwargs)

    def _new_generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed)

    def _draw_uniform(self, like: Tensor) -> Tensor:
        return torch.rand((), generator=self._new_generator(), dtype=torch.float64).to(like.device)

    def _fill_with_one_draw(self, func: Any, name: str, args: Any, kwargs: Any) -> Tensor:
        """Fills the result of a random operation with one draw of its law, so that the draw is independent of the
        shape.
        """
        out: Tensor = func(*args, **kwargs)
        # One draw of the operation's own law, made without the tensor's shape.
        one = torch.empty((), dtype=out.dtype if out.dtype != torch.bool else torch.float32)
        generator = self._new_generator()
        if name in ("rand", "rand_like"):
            return out.fill_(self._draw_uniform(out).item())
        if name == "uniform_":
            given_by_name = [kwargs.get(key, value) for key, value in _UNIFORM[len(args) - 1 :]]
            low, high = list(args[1:3]) + given_by_name
            return out.fill_(low + (high - low) * self._draw_uniform(out).item())
        # In-place draws are repeated on a single number, with the arguments that were given.
        if name.endswith("_"):
            given = {key: value for key, value in kwargs.items() if key != "generator"}
            getattr(one, name)(*args[1:], **given, generator=generator)
        elif name.startswith("randn"):
            one.normal_(generator=generator)
        elif name.startswith("randint"):
            bounds = [a for a in (args[1:] if name == "randint_like" else args) if isinstance(a, int)][:2]
            one.random_(*(bounds if len(bounds) == 2 else (0, bounds[0])), generator=generator)
        return out.fill_(one.item())
