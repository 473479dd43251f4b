"""Building: each library on its own, what failed is said, and nothing that failed stops the rest."""

import subprocess
import sys
from pathlib import Path

import pytest

from sordino.kernels import build
from tests.kernels.libraries import copied


def built(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(folder / "build.py")], env=environment or None, capture_output=True, text=True, check=False
    )


def libraries(folder: Path) -> set[str]:
    return {path.name for path in folder.glob(f"lib*{build.SUFFIX}")}


def test_a_build_without_a_compiler_says_so(tmp_path):
    copied(tmp_path)
    for environment, reason in (
        ({"PATH": ""}, "no C compiler"),
        ({"PATH": "", "CC": "no-such-cc -m64"}, "could not make it"),
    ):
        ran = built(tmp_path, **environment)
        assert ran.returncode == 1
        assert reason in ran.stderr
        assert len(ran.stderr.splitlines()) == 1  # one reason, said once for all
    assert not libraries(tmp_path)


def test_a_broken_source_leaves_the_other_libraries_working(tmp_path):
    if build.compiler() is None:
        pytest.skip("there is no C compiler")
    copied(tmp_path)
    (tmp_path / "lstm.c").write_text("int broken(\n")
    (tmp_path / "noise.c").unlink()
    ran = built(tmp_path)
    assert ran.returncode == 1
    assert "not compiled: lstm: " in ran.stderr
    assert "error" in ran.stderr
    assert "not compiled: noise: " in ran.stderr
    made = {library.path.name for library in build.LIBRARIES if library not in (build.LSTM, build.NOISE)}
    assert libraries(tmp_path) == made
