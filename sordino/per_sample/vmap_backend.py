"""The vmap backend: all samples of a chunk at once by `torch.func`, gradients written out."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from sordino import validate
from sordino.per_sample.batch_structure import batch_size, list_tensors, take_rows
from sordino.per_sample.batch_structure import call_loss as losses_of
from sordino.per_sample.materialised import Materialised
from sordino.per_sample.model_checks import require_one_loss
from sordino.per_sample.protocol import LossFn, trainable_parameters
from sordino.refusal import Refusal


class FunctionalLoss(nn.Module):
    """Wraps the loss as a module around the user's model, so that the model's parameters can be arguments."""

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn
        self.training = model.training

    def forward(self, batch: Any) -> Tensor:
        """Returns one loss per sample."""
        found: Tensor = losses_of(self.loss_fn, self.model, batch)
        return found


@dataclass(frozen=True)
class Vmap:
    """Vectorises `chunk` samples at a time; None takes the whole physical batch.

    Args:
        chunk: samples at a time; None for the whole physical batch.

    Examples:
        >>> import torch, sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> private = sd.Private(torch.nn.Linear(3, 1), lambda m, x: m(x).square().sum(1), query, backend=Vmap(chunk=8))
        >>> private.steps
        0

    """

    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.chunk is not None:
            validate.count("chunk", self.chunk)

    def per_sample(self, model: nn.Module, loss_fn: LossFn, batch: Any) -> Materialised:
        """Runs each sample through the loss as a batch of one, all samples of a chunk at once under vmap."""
        # Refuse tensors that disagree about the number of samples before anything is computed.
        batch_size(batch)
        parameters = {f"model.{name}": p.detach() for name, p in trainable_parameters(model).items()}
        wrapped = FunctionalLoss(model, loss_fn)
        # vmap maps over a list of tensors; the structure around them is put back inside.
        leaves, spec = tree_flatten(batch)

        def loss(theta: dict[str, Tensor], sample: list[Tensor]) -> Tensor:
            """Returns the loss of one sample at the given parameters, which the vmap backend differentiates."""
            rows = iter(sample)  # vmap takes tensors alone; what is None stays where it was
            one = tree_unflatten([None if leaf is None else next(rows).unsqueeze(0) for leaf in leaves], spec)
            return require_one_loss(functional_call(wrapped, theta, (one,)))

        # Vectorise the gradient over samples; if torch cannot, find out whether the loss itself fails too.
        each = vmap(grad_and_value(loss), in_dims=(None, 0), randomness="different", chunk_size=self.chunk)
        try:
            with warnings.catch_warnings():  # an operation without a batching rule is slower, not wrong
                warnings.filterwarnings(
                    "ignore", message="There is a performance drop because we have not yet implemented"
                )
                rows, losses = each(parameters, list_tensors(batch))
        except RuntimeError as error:
            losses_of(loss_fn, model, take_rows(batch, slice(0, 1)))  # fails too if vmap is not to blame
            raise Refusal(
                "torch.func cannot vectorise this model or loss.\n"
                "It works without being vectorised.\n"
                "Use backend=sordino.per_sample.Loop()."
            ) from error
        return Materialised({name.removeprefix("model."): row for name, row in rows.items()}, losses.detach())

    def sample_bytes(self, model: nn.Module) -> int:
        """Returns the bytes of one gradient and about as much again for activations and temporaries."""
        return 4 * sum(p.numel() * max(4, p.element_size()) for p in trainable_parameters(model).values())
