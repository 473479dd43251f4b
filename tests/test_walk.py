"""The page of the architecture lists the files that a lot goes through, in order: one lot is followed, and compared."""

import re
import sys
from pathlib import Path

import torch
from torch import nn

import sordino as sd
from sordino.runtime_checks.check_schedule import CheckSchedule

ROOT = Path(sd.__file__).parent
PAGE = (ROOT.parent / "docs" / "architecture.md").read_text()


def files_on_the_page() -> list[str]:
    walk = PAGE[PAGE.index("## One lot's walk") : PAGE.index("## Choices made in building")]
    return re.findall(r"^\d+\. `([\w/]+\.py)`", walk, re.MULTILINE)


def files_of_one_lot(monkeypatch) -> list[str]:
    """Every file of the package in which a function is called, from a draw to the claim, in the order of the first call."""
    data = torch.utils.data.TensorDataset(torch.randn(200, 4), torch.randint(0, 2, (200,)))
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: dict[str, None] = {}

    def loss_fn(model, x, y):
        return nn.functional.cross_entropy(model(x), y, reduction="none")

    def called(frame, event, arg):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            found.setdefault(path.relative_to(ROOT).as_posix())

    private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1)))
    lots = private.draws(data, sd.Poisson(0.1), steps=3, expected_batch=20)
    for _ in range(2):  # the first batch teaches the engine, and does more
        private.backward(next(lots))
        optimizer.step()
    # A lot that has the standing test goes the engine's way before it is summed.
    monkeypatch.setattr(CheckSchedule, "is_due", lambda *_: False)
    monkeypatch.setattr(CheckSchedule, "is_due_before_claim", lambda *_, **__: False)
    monkeypatch.setattr(CheckSchedule, "is_due_at_the_end", lambda *_: False)
    sys.setprofile(called)
    try:
        private.backward(next(lots))
        optimizer.step()
        private.claim(delta=1e-5)
    finally:
        sys.setprofile(None)
    return list(found)


def test_no_file_is_listed_twice():
    files = files_on_the_page()
    assert len(files) == len(set(files)) > 30


def test_a_lot_goes_through_the_files_on_the_page_in_their_order(monkeypatch):
    listed = files_on_the_page()
    assert [name for name in files_of_one_lot(monkeypatch) if name in listed] == listed
