"""Data sets: MNIST, Fashion-MNIST and CIFAR-10 from real files, and data generated here."""

from sordino.data.by_name import NotFetched, check, fetch, load
from sordino.data.catalogue import ENTRIES
from sordino.data.generated import cloud, digits, linear
from sordino.data.images import Data, Images

NAMES = tuple(ENTRIES)

__all__ = ["NAMES", "Data", "Images", "NotFetched", "check", "cloud", "digits", "fetch", "linear", "load"]
