"""The everyday tasks: each script is short, runs as it stands, and ends with a claim that is a guarantee."""

import contextlib
import io
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import sordino as sd

FOLDER = Path(__file__).parents[1] / "examples" / "tasks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
PAGE = FOLDER.parents[1] / "docs" / "how_to" / "everyday_tasks.md"
MOST_LINES = 25
NEEDS = {
    "hf_datasets": ["datasets"],
    "hf_text": ["transformers", "tokenizers"],
    "lora_generate": ["transformers", "peft"],
    "table": ["sklearn"],
    "tensorboard": ["tensorboard"],
}
"""Packages that a script needs besides sordino's own."""
TARGETS = {
    "bf16": 3,
    "cnn": 3,
    "custom_layer": 3,
    "diffusion": 5,
    "export": 3,
    "gan": 5,
    "hf_datasets": 3,
    "hf_text": 8,
}
TARGETS |= {"large_lots": 3, "lora_generate": 8, "multi_task": 3, "search": 4, "table": 1, "vae": 3}
"""The ε that a script asks for."""


def _run(name):
    """Runs a script in this process, from the same random numbers each time, and returns what it printed."""
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    torch.manual_seed(0)
    out = io.StringIO()
    # Other libraries may warn of what they like; a claim that is void is an error.
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", sd.ClaimVoidedWarning)
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    return out.getvalue()


def _assert_is_true_claim(name, said):
    """Checks that one guarantee was printed, with an ε that is finite and keeps to what was asked for."""
    found = re.findall(r"\(([0-9.]+), (?:1e-05|0\.0001)\)-differential privacy", said)
    assert len(found) == 1, said
    assert 0 < float(found[0]) <= TARGETS.get(name, 10) + 0.001
    assert "no privacy guarantee" not in said


SLOW = ("search", "torchrun")


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in SLOW])
def test_a_task_runs_and_ends_with_a_guarantee(name):
    _assert_is_true_claim(name, _run(name))


@pytest.mark.slow
def test_the_search_ends_with_a_guarantee():
    _assert_is_true_claim("search", _run("search"))


@pytest.mark.slow
def test_two_ranks_end_with_one_guarantee():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*command, FOLDER / "torchrun.py"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    _assert_is_true_claim("torchrun", done.stdout)


def test_the_gans_claim_names_its_post_processing():
    said = _run("gan")
    assert "by declaration: the generator is trained through the discriminator" in said
    assert "made outside" not in said


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_task_is_short_and_on_the_page(name):
    lines = (FOLDER / f"{name}.py").read_text().splitlines()
    assert len(lines) <= MOST_LINES
    assert lines[0].startswith('"""'), "its first line says what it shows"
    assert f"examples/tasks/{name}.py" in PAGE.read_text()
