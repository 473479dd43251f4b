"""Sealed values: no number, no text, no iteration, no copy; opened only on the record."""

import copy
import pickle
import re
from pathlib import Path

import pytest
import torch

import sordino
from sordino import Sealed
from sordino.ledger.ledger import Ledger

SECRET = 41.5


@pytest.mark.parametrize(
    "leak",
    [
        *(float, int, bool, len, list, hash, pickle.dumps, copy.copy, copy.deepcopy),
        *(lambda s: s == SECRET, lambda s: s + 1, lambda s: s < 1, lambda s: s[0], lambda s: s * 2),
    ],
)
def test_nothing_leaks(leak):
    with pytest.raises(TypeError):
        leak(Sealed(SECRET))


def test_printing_shows_nothing():
    for text in (repr(Sealed(SECRET)), str(Sealed(SECRET)), f"{Sealed(SECRET):>20}", f"{[Sealed(SECRET)]}"):
        assert "41" not in text
        assert "Sealed(…)" in text


def test_map_keeps_the_seal():
    ledger = Ledger()
    assert Sealed([1, 2], ledger).map(len).expose("test") == 2
    assert "test" in ledger.event().reason


@pytest.mark.parametrize("name", ["mean", "sum", "median", "amax", "std", "numel"])
def test_what_people_ask_of_losses_can_be_mapped(name):
    losses, function = torch.tensor([1.0, 2.0, 6.0]), getattr(torch, name)
    assert Sealed(losses, Ledger()).map(function).expose("test") == function(losses)


def named_len(value):
    return 0


named_len.__name__ = "len"
kept = []


class Keeps:
    def __call__(self, value):
        kept.append(value)


@pytest.mark.parametrize(
    "leak",
    [kept.append, lambda value: kept.append(value), Keeps(), print, named_len, torch.manual_seed, float, id],
    ids=["append", "lambda", "object", "print", "named len", "manual_seed", "float", "id"],
)
def test_a_function_that_could_keep_what_it_sees_gets_nothing(leak, capsys):
    with pytest.raises(TypeError, match=r"(?s)could keep what it sees.*disclose\(name\)"):
        Sealed(SECRET, Ledger()).map(leak)
    assert kept == []
    assert capsys.readouterr().out == ""


def test_an_error_of_a_function_does_not_tell_the_value():
    with pytest.raises(TypeError, match=r"map\(len\)") as error:
        Sealed(SECRET, Ledger()).map(len)
    assert "41" not in str(error.value)
    assert error.value.__suppress_context__


def test_functions_of_ours_are_applied_only_on_the_way_to_the_door():
    root = Path(sordino.__file__).parent
    using = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if "map_sealed(" in path.read_text()}
    on_the_way = {"clipping/adaptive_layerwise.py", "clipping/adaptive_quantile.py", "queries/private_quantile.py"}
    assert using == {"release/sealed.py", *on_the_way}


def test_without_a_ledger_nothing_can_be_exposed():
    with pytest.raises(RuntimeError, match="belongs to no ledger"):
        Sealed(SECRET).expose("curiosity")


@pytest.mark.parametrize("reason", ["", "  ", None])
def test_exposing_needs_a_reason(reason):
    with pytest.raises(ValueError, match="say in words"):
        Sealed(SECRET, Ledger()).expose(reason)


def test_only_the_door_unseals_and_only_the_door_adds_noise():
    """Rule R1, read in the source: `unseal` and `noise.add_` are called in release.py and nowhere else."""
    root = Path(sordino.__file__).parent
    for path in root.rglob("*.py"):
        text = path.read_text()
        if path.name not in ("release.py", "sealed.py"):
            assert "unseal" not in text, path
        if path.name != "release.py":
            assert "noise.add_(" not in text, path
            drawn = re.search(r"\.(normal|normal_blocks|add_normal_?|normals_at|laplace)\(", text)
            where = path.relative_to(root).as_posix()
            if where.startswith(("auditing/", "app/audits/")):
                continue  # audits take noise off again
            assert drawn is None or where in (
                "rng/streams.py",
                "release/noise.py",
                "kernels/noise_kernel.py",
                "rng/keystream.py",
                "rng/device_noise.py",  # compares a device's first values with the CPU's before it is used
                "rng/phase_noise.py",  # makes the noise of earlier steps again, for release/correlated_noise.py
            ), path
