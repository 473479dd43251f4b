"""Keeps the vectors of spectral normalisations functions of the weights and the number of lots.

Every forward pass moves the vectors on by one power iteration (Miyato et al. 2018, arXiv:1802.05957). Left to itself, a
lot of three batches would move them three times, and one of two twice: how many records were drawn would leave with the
model, and a pass that is run again would not be the same. So every pass of the library leaves the vectors as they were,
and they are moved on once for each lot.

Privacy: the vectors are functions of released weights and of the number of lots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import is_parametrized


def find_spectral_vectors(modules: Iterable[nn.Module]) -> list[Tensor]:
    """Returns the vectors of every spectral normalisation among the modules."""
    return [b for m in modules if isinstance(m, _SpectralNorm) for b in m._buffers.values() if b is not None]


@contextmanager
def keep_vectors(vectors: Sequence[Tensor]) -> Iterator[None]:
    """Puts the vectors of spectral normalisations back to what they were, whatever runs inside the context."""
    before = [vector.clone() for vector in vectors]
    try:
        yield
    finally:
        with torch.no_grad():
            for vector, old in zip(vectors, before, strict=True):
                vector.copy_(old)


def advance_vectors(modules: Sequence[nn.Module]) -> None:
    """Advances the vectors of every spectral normalisation in training mode by one power iteration."""
    if not any(isinstance(m, _SpectralNorm) for m in modules):
        return
    with torch.no_grad():
        # Computing a weight is what moves its vectors on.
        for module in modules:
            if is_parametrized(module):
                for name, chain in module.parametrizations.items():  # type: ignore[union-attr,operator]
                    if any(isinstance(m, _SpectralNorm) and m.training for m in chain.modules()):
                        getattr(module, name)  # computes the weight
