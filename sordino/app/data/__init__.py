"""Data sets: MNIST, Fashion-MNIST and CIFAR-10 from real files, and generated data."""

from sordino.app.data.by_name import NotFetched, check, fetch, load
from sordino.app.data.data_catalogue import ENTRIES
from sordino.app.data.generated_data import cloud, digits, linear
from sordino.app.data.images import Data, Images

NAMES = tuple(ENTRIES)

__all__ = ["NAMES", "Data", "Images", "NotFetched", "check", "cloud", "digits", "fetch", "linear", "load"]
