"""Building: each library on its own, what failed is said, and nothing that failed stops the rest."""

import importlib
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from sordino.kernels import build
from tests.kernels.libraries import copied


def built(folder: Path, *names: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(folder / "build.py"), *names],
        env=environment or None,
        capture_output=True,
        text=True,
        check=False,
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
    if build.find_compiler() is None:
        pytest.skip("there is no C compiler")
    copied(tmp_path)
    (tmp_path / "lstm.c").write_text("int broken(\n")
    (tmp_path / "noise.c").unlink()
    ran = built(tmp_path, "lstm", "noise", "matrices", "gram")
    assert ran.returncode == 1
    assert "not compiled: lstm: " in ran.stderr
    assert "error" in ran.stderr
    assert "not compiled: noise: " in ran.stderr
    assert libraries(tmp_path) == {build.MATRICES.path.name, build.GRAM.path.name}
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).sordino_level(0))"
    for made in (build.MATRICES, build.GRAM):
        path = str(tmp_path / made.path.name)
        ran = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
        assert ran.stdout == "0\n"


PRETEND = """
import sys
if any(word.endswith("lstm.c") for word in sys.argv):
    sys.exit("lstm.c:1: error: broken")
open(sys.argv[sys.argv.index("-o") + 1], "w").close()
"""


@pytest.fixture
def hatch_build(monkeypatch):
    """The hook runs without hatchling here: of its interface nothing but the name is needed."""
    for name in ("", ".builders", ".builders.hooks", ".builders.hooks.plugin", ".builders.hooks.plugin.interface"):
        monkeypatch.setitem(sys.modules, f"hatchling{name}", SimpleNamespace(BuildHookInterface=object))
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    return importlib.import_module("hatch_build")


@pytest.mark.skipif(not sysconfig.get_platform().startswith("linux-"), reason="manylinux is Linux")
def test_a_wheel_says_how_old_the_c_library_may_be(hatch_build, tmp_path):
    machine = sysconfig.get_platform().removeprefix("linux-")
    made = [library.path for library in build.LIBRARIES if library.path.exists()]
    if made:  # what the compiler here asks for
        assert hatch_build.platform_of(made) == f"manylinux_2_17_{machine}"
    for content, wanted in (
        (b"libc.so.6\0GLIBC_2.2.5\0GLIBC_2.28\0", f"manylinux_2_28_{machine}"),
        (b"libc.so.6\0GLIBC_2.4\0", f"manylinux_2_17_{machine}"),
        (b"libc.so.6\0libgomp.so.1\0GLIBC_2.4\0", f"linux_{machine}"),
    ):
        (tmp_path / "one.so").write_bytes(content)
        assert hatch_build.platform_of([tmp_path / "one.so"]) == wanted


def test_a_wheel_holds_the_libraries_that_compiled(tmp_path, monkeypatch, hatch_build):
    hook_class = hatch_build.CustomBuildHook
    folder = tmp_path / "sordino" / "kernels"
    folder.mkdir(parents=True)
    copied(folder)
    (tmp_path / "pretend.py").write_text(PRETEND)
    monkeypatch.setenv("CC", f"{sys.executable} {tmp_path / 'pretend.py'}")
    warned: list[str] = []
    hook = SimpleNamespace(target_name="wheel", root=str(tmp_path), app=SimpleNamespace(display_warning=warned.append))
    data = {"artifacts": []}
    hook_class.initialize(hook, "standard", data)
    made = {f"sordino/kernels/{library.path.name}" for library in build.LIBRARIES if library != build.LSTM}
    assert set(data["artifacts"]) == made
    assert data["pure_python"] is False
    assert "not compiled: lstm: " in warned[0]
    (tmp_path / "pretend.py").write_text("import sys; sys.exit('error: no')")
    data = {"artifacts": []}
    hook_class.initialize(hook, "standard", data)
    assert data == {"artifacts": []}
