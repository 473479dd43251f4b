"""Coupling finding: which promise a neighbour test found broken, in words that name the cure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sordino.per_sample.loss_probe import COUNTER


class Broken(Enum):
    """The promises, each with what is said when it is broken. Nothing private is quoted: no count, no loss, no norm."""

    AGAIN = (
        "the same records with the same random numbers gave other losses or gradients the second time\n"
        "  Why       What is kept of one batch reaches the losses of the next, where no clipping bounds it.\n"
        "  Look for  a queue, a running statistic or a cache in the model, the loss, collate or a hook;\n"
        "            a random generator of its own, such as numpy.random.default_rng() or torch.Generator()\n"
        "  Fix       Keep nothing of the records between batches, and draw from torch's, numpy's or Python's global\n"
        "            generators, which the run seeds."
    )
    COUNTED = COUNTER
    EXCHANGED = (
        "exchanging one record changed the losses or gradients of others in its batch: the samples are coupled\n"
        "  Why       Clipping bounds what one record contributes only if its loss depends on that record alone.\n"
        "  Look for  a statistic, a ranking or a maximum taken over the batch in the model, the loss, a hook or collate;\n"
        "            padding that is not masked; a divisor counted over the batch, such as the number of its tokens;\n"
        "            a collate that sorts the records of a batch (leave their order; torch's packing takes\n"
        "            enforce_sorted=False)\n"
        "  Fix       Make each loss depend on its own record: mask what is padded, divide by what is counted in the\n"
        "            record, and draw what is random from torch's, numpy's or Python's global generators."
    )
    ROWS = (
        "collate returned another number of rows than it was given records\n"
        "  Why       Who is left out, or added, may depend on the others.\n"
        "  Fix       Leave records out of the dataset beforehand, by a rule that looks at each alone."
    )
    ALONE = (
        "a record taken alone has another gradient than in its batch: the samples are coupled\n"
        "  Why       What it is padded with, scaled by or sorted among reaches it, and depends on the other records.\n"
        "  Look for  padding that is not masked, and sizes or statistics of the batch, in collate, the dataset,\n"
        "            the model and the loss\n"
        "  Fix       Make each record's loss the same in any company."
    )
    READ = (
        "a record reads differently when other rows of the dataset are exchanged: __getitem__, a transform or collate "
        "looks at other records (a partner for mixup, a mean or maximum over the data, neighbours), so one record is in "
        "the losses of many; make each record of its own row alone, release statistics with sordino.ask, mix with "
        "public records, or keep a public table that has as many rows as there are records in a module of its own and not "
        "in the dataset"
    )
    LOSS_READS = (
        "a record's loss changes when other rows of the dataset are exchanged: the loss or the model reads the dataset\n"
        "  Why       Every record is then in the losses of all others, where no clipping bounds what it does.\n"
        "  Look for  the dataset, its tensors or arrays in the loss, its closure or global variables, or in the model:\n"
        "            class frequencies, nearest neighbours, a graph over the records, anchors taken from the data\n"
        "  Fix       Compute each loss from the batch alone; use public constants and public records, or release\n"
        "            statistics with sordino.ask."
    )
    REPEATED = (
        "rows of the dataset are read as several records (a wrapper that repeats, a list of indices with repetitions, a "
        "plain and an augmented copy), so one record moves the sum several times; give every record once and draw more "
        "lots, augment at random as it is read, use unit=sordino.Views(k) for k augmented readings of a record, or repeat "
        "by torch's Subset and ConcatDataset, which are charged for it"
    )
    NORM = (
        "a record's measured gradient length is less than what it adds to the sum; report the model, or use the backend "
        "sordino.per_sample.Loop()"
    )
    WRITTEN = (
        "the forward pass wrote to {name}: what it stores about private records would leave with the model; stop the "
        "update, for instance with .eval() on its module"
    )


@dataclass(frozen=True)
class CouplingFinding:
    """A broken promise."""

    broken: Broken
    name: str = ""

    def __str__(self) -> str:
        return self.broken.value.format(name=self.name)
