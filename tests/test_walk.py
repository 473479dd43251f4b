"""The page of the architecture lists the files that a lot passes, in order: one lot is followed, and compared."""

import pytest

from sordino.rng.keystream import noise_kernel
from tools import lot_walk

MOST_FILES = 45
MOST_RETURNS = 10
"""How often one lot comes back to private.py from another file."""


@pytest.fixture(scope="module")
def walk():
    return lot_walk.trace_lot()


def test_a_lot_passes_the_files_on_the_page_in_their_order(walk):
    if noise_kernel() is None:
        pytest.skip("without compiled kernels noise is made elsewhere")
    assert lot_walk.listed_files(lot_walk.PAGE.read_text()) == list(walk.files), "run `python -m tools.lot_walk`"


def test_a_lot_passes_few_files(walk):
    assert len(walk.files) <= MOST_FILES


def test_a_lot_comes_back_to_the_loop_a_few_times(walk):
    assert len(walk.calls_from_loop) <= MOST_RETURNS, walk.calls_from_loop


def test_a_file_left_out_of_the_page_would_be_noticed(walk):
    page = f"{lot_walk.HEADING}\n\n```text\n{lot_walk.render_block(list(walk.files)[1:])}```\n"
    assert lot_walk.listed_files(page) == list(walk.files)[1:]
