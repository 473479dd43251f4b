"""The model as passes over lots see it: its parameters by name, all that it holds, and where shards are gathered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import is_

import torch
from torch import Tensor, nn

from sordino.distributed.fully_sharded import FullySharded
from sordino.per_sample.model_inventory import (
    Inventory,
    ParameterNames,
    advance_vectors,
    find_spectral_vectors,
    list_model_tensors,
    list_tensor_names,
)


class PassModel:
    """Knows a model's modules, parameters and buffers, and gathers the parameters that are divided among ranks."""

    def __init__(self, model: nn.Module, sharded: FullySharded | None, *, layer_by_layer: bool) -> None:
        self.model = model
        self.layer_by_layer = layer_by_layer  # parameters are gathered layer by layer in the passes over a lot
        self._sharded = sharded
        self.device = torch.device("cpu")  # where the model is
        # The names of parameters at rest, and as the passes see them where a sharded model is gathered.
        self._at_rest = ParameterNames(model)
        self.names = self._at_rest if sharded is None else ParameterNames(model)
        self.inventory: Inventory
        self.tensors: list[Tensor] = []  # all that the model holds
        self.vectors: list[Tensor] = []  # of spectral normalisations
        self.buffers: list[tuple[str, Tensor]] = []
        self.refresh_inventory()

    @property
    def is_sharded(self) -> bool:
        """Whether the parameters are divided among ranks."""
        return self._sharded is not None

    @property
    def named(self) -> dict[str, nn.Parameter]:
        """The parameters at rest by name; the dict is the same object for as long as they are the same."""
        return self._at_rest.named

    def refresh_inventory(self, new_inventory: Inventory | None = None) -> None:
        """Refreshes, once per lot, what is known of the model that passes over lots see.

        Parameters may be thawed, frozen or moved between lots, not within one.
        """
        self.release_full_parameters()
        inventory = Inventory(self.model) if new_inventory is None else new_inventory
        if self._sharded is None or not self._sharded.is_gathered:
            self._at_rest.refresh(inventory)
        for p in self.named.values():
            self.device = p.device
            break
        self._refresh_pass_view(inventory)

    def _refresh_pass_view(self, inventory: Inventory) -> None:
        """Refreshes what is known of the model as the passes see it, with gathered parameters."""
        self.inventory = inventory
        held = list_model_tensors(inventory.modules)
        self.vectors = find_spectral_vectors(inventory.modules)
        # The names of buffers are listed only where the model holds other tensors than before.
        if len(held) != len(self.tensors) or not all(map(is_, held, self.tensors)):
            named = zip(list_tensor_names(inventory.modules), held, strict=True)
            self.tensors = held
            self.buffers = [(name, tensor) for name, tensor in named if not isinstance(tensor, nn.Parameter)]

    def release_full_parameters(self) -> None:
        """Releases gathered parameters, so that of a sharded model this rank holds its own rows only."""
        if self._sharded is not None:
            self._sharded.release_full_parameters()

    @contextmanager
    def gathered_parameters(self) -> Iterator[None]:
        """Allows passes of the model inside: parameters that are divided among ranks are gathered."""
        if self._sharded is None:
            yield
            return
        with self._sharded.gathered_parameters():
            self._refresh_gathered()
            yield

    @contextmanager
    def parameters_for_passes(self) -> Iterator[None]:
        """Allows the model's passes over a lot inside, with parameters gathered layer by layer if that is asked for."""
        if self._sharded is None or not self.layer_by_layer:
            with self.gathered_parameters():
                yield
            return
        with self._sharded.gathered_layer_by_layer():
            self._refresh_gathered()
            yield

    def _refresh_gathered(self) -> None:
        self._refresh_pass_view(Inventory(self.model))
        self.names.refresh(self.inventory)

    def count_elements(self) -> dict[str, int]:
        """Returns the number of elements of each trainable parameter."""
        return {name: p.numel() for name, p in self.names.trained.items()}

    def finish_passes(self) -> None:
        """Ends the model's passes over a lot: vectors of spectral normalisations, which move once per lot, move on."""
        if self.vectors:
            with self.gathered_parameters():
                advance_vectors(self.inventory.modules)
