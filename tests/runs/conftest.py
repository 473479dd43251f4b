"""The run that nobody disturbed, which those that were cut off are compared with."""

import pytest

import sordino
from tests.runs.cut_off import TINY


@pytest.fixture(scope="session")
def calm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calm")
    return sordino.fit("spiral", out=folder, **TINY)
