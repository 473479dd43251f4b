"""Datasets that are read from files: worker processes load the chunks of coming lots while this one trains."""

import torch
from torch.utils.data import Dataset

import sordino as sd


class Files(Dataset):
    """Records made one by one, as from a disk."""

    def __len__(self):
        """How many there are."""
        return 2000

    def __getitem__(self, i):
        """One record: numbers, and a class."""
        x = torch.randn(10, generator=torch.Generator().manual_seed(i))
        return x, int(x[0] > x[1])


def loss_fn(model, x, y):
    """One loss per record."""
    return torch.nn.functional.cross_entropy(model(x), y, reduction="none")


def main():
    """Processes that are spawned import this file, so the work is in a function."""
    model = torch.nn.Linear(10, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(bound=1.0), sd.Gaussian(multiplier=2.0)))
    lots = private.draws(Files(), sd.Poisson(rate=0.05), steps=10, expected_batch=100, physical_batch=64, workers=2)
    for lot in lots:
        private.backward(lot)
        optimizer.step()
    print(private.claim(delta=1e-5))


if __name__ == "__main__":
    main()
