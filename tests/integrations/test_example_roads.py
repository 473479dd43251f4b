"""The examples of the roads run as they stand and end with a claim."""

import contextlib
import io
import warnings
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "roads"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_ends_with_a_claim(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(out):
        warnings.simplefilter("ignore")  # of other libraries, about themselves
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
    assert "-differential privacy\n" in out.getvalue(), out.getvalue()
