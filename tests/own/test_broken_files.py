"""Broken files of a user's own: one line with file, place and cure, exit code 2, and nothing is begun."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sordino.app.cli.main import main

GOOD = [f"{20 + k % 50},{'FM'[k % 2]},{'yes' if k % 3 else 'no'}" for k in range(40)]
HEAD = "age,sex,income"


def table(*lines):
    """Lines of a CSV; those of records that are not said are good ones."""
    return "\n".join([*lines, *GOOD]) + "\n"


def at(number, line):
    """A good table whose record at this line is another."""
    rows = [HEAD, *GOOD]
    rows[number - 1] = line
    return "\n".join(rows) + "\n"


def lines(*records):
    return "\n".join(r if isinstance(r, str) else json.dumps(r) for r in records) + "\n"


DAYS = [f"20{10 + k % 10}-{1 + k % 12}-{1 + k % 28}" for k in range(200)]
NOTE = {"note": "well", "mood": "good"}

FILES = {
    "empty": ("t.csv", "", [], "t.csv: is empty; need a line of names"),
    "only blanks": ("t.csv", " \n\n", [], "t.csv: is empty"),
    "only a header": ("t.csv", HEAD + "\n", [], "t.csv: has names of columns and no records; need a line for each"),
    "no target column": ("t.csv", table("age,sex,pay"), [], "has no column 'income', which --target names; there is age"),
    "ragged row": ("t.csv", at(7, "31,F"), [], "t.csv, line 7: 2 cells where the first line has 3 names; put quotes"),
    "unquoted comma": ("t.csv", at(9, "31,F,yes,no"), [], "t.csv, line 9: 4 cells"),
    "no number": ("t.csv", at(5, "old,F,yes"), ["--bounds", "age=0:100"], "line 5: column 'age' is no finite number; mend"),
    "no number, undeclared": (
        "t.csv",
        at(5, "old,F,yes"),
        [],
        "line 5: column 'age' holds numbers in most records and is no number",
    ),
    "not a number": ("t.csv", at(6, "nan,F,yes"), ["--bounds", "age=0:100"], "line 6: column 'age' is no finite number"),
    "infinite": ("t.csv", at(6, "inf,F,yes"), ["--bounds", "age=0:100"], "line 6: column 'age' is no finite number"),
    "missing number": ("t.csv", at(6, ",F,yes"), ["--bounds", "age=0:100"], "line 6: column 'age' is empty; mend"),
    "other encoding": (
        "t.csv",
        at(8, "31,Ü,yes").encode("latin-1"),
        [],
        "t.csv, line 8: is not UTF-8 text; save it as UTF-8 (in a spreadsheet: CSV UTF-8; on the command line: "
        "iconv -f WINDOWS-1252 -t UTF-8 t.csv > utf8.csv)",
    ),
    "two bytes a letter": ("t.csv", table(HEAD).encode("utf-16"), [], "iconv -f UTF-16 -t UTF-8 t.csv > utf8.csv)"),
    "binary": ("t.csv", at(8, "31,\0,yes"), [], "t.csv, line 8: holds bytes that no text has"),
    "two columns of a name": ("t.csv", table("age,age,income"), [], "line 1: two columns are called 'age'; give every"),
    "a column without a name": ("t.csv", table("age,,income"), [], "line 1: column 2 has no name"),
    "unknown category": ("t.csv", at(4, "31,X,yes"), ["--categories", "sex=F|M"], "line 4: column 'sex' holds none of"),
    "unknown class": ("t.csv", at(4, "31,F,maybe"), ["--classes", "yes|no"], "line 4: column 'income' holds none of its 2"),
    "one class": ("t.csv", "\n".join([HEAD, "31,F,yes", "32,M,yes"]), [], "only one class in 'income'; need two or more"),
    "unclosed quote": ("t.csv", at(11, '31,"F,yes'), [], "t.csv, line 11: quotes that are opened here are never closed"),
    "huge field": ("t.csv", at(11, "31," + "F" * 1_100_000 + ",yes"), [], "line 11: a cell of more than 1,000,000"),
    "another delimiter": ("t.csv", table(HEAD), ["--delimiter", ";"], "its name holds ','; say --delimiter ','"),
    "a target of numbers": ("t.csv", "a,income\n" + "".join(f"1,{k}\n" for k in range(200)), [], "for a number say --loss"),
    "a name with a space": ("t.csv", "a b,income\n" + "".join(f"w{k},{k % 2}\n" for k in range(200)), [], "(--drop 'a b')"),
    "a name with a space, empty cells": (
        "t.csv",
        "a b,income\n" + "".join(f"{k or ''},{k % 2}\n" for k in range(200)),
        ["--bounds", "a b=0:9"],
        "say --missing 'a b'",
    ),
    "decimal commas": (
        "t.csv",
        "a;income\n" + "".join(f"{k},5;{k % 2}\n" for k in range(200)),
        [],
        "column 'a' holds numbers with a decimal comma; write them with a point, as in 1.5, or leave it out (--drop a)",
    ),
    "dates with slashes": (
        "t.csv",
        "a,income\n" + "".join(f"{1 + k % 28}/{1 + k % 12}/20{10 + k % 10},{k % 2}\n" for k in range(200)),
        [],
        "column 'a' holds dates with slashes, whose day and month could be taken for one another; write them as",
    ),
    "dates, some missing": (
        "t.csv",
        "a,income\n" + "".join(f"{DAYS[k] if k % 9 else ''},{k % 2}\n" for k in range(200)),
        [],
        "say --dates a=first:last --missing a, with days as in 2015-01-01",
    ),
    "free text as a column": ("t.csv", "a,income\n" + "".join(f"w{k},{k % 2}\n" for k in range(200)), [], "(--drop a)"),
    "ending": ("t.xlsx", table(HEAD), [], "a file that ends in '.xlsx'; need .csv, .tsv, .jsonl, .parquet, .npz, or a"),
    "misspelt column": ("t.csv", table(HEAD), ["--bounds", "aeg=0:100"], "has no column 'aeg', which --bounds names"),
    "nothing to learn from": ("t.csv", table(HEAD), ["--drop", "age,sex"], "no column is left to learn from"),
    "broken line": ("t.jsonl", lines(NOTE, '{"note": '), [], "t.jsonl, line 2: not JSON; need one object on each line"),
    "a list": ("t.jsonl", lines(NOTE, [1, 2]), [], "t.jsonl, line 2: not an object with fields"),
    "missing field": ("t.jsonl", lines(NOTE, {"note": "x"}), [], "t.jsonl, line 2: lacks the field 'mood'"),
    "another field": ("t.jsonl", lines(NOTE, NOTE | {"x": 1}), [], "line 2: has a field 'x' that the first has not"),
    "a field of fields": ("t.jsonl", lines(NOTE, NOTE | {"note": {}}), [], "line 2: the field 'note' is a dict; need"),
    "no parquet": ("t.parquet", "PAR1 and nothing else", [], "t.parquet: "),
}  # fmt: skip


def refused(arguments, capfd, folder):
    before = sorted(filter(Path.is_file, folder.rglob("*")))
    code = main(["train", *map(str, arguments), "--epsilon", "3", "--steps", "2", "--no-report"])
    err = capfd.readouterr().err
    assert code == 2, err
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert sorted(filter(Path.is_file, folder.rglob("*"))) == before  # nothing was begun
    return err


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_a_broken_table(name, tmp_path, capfd):
    file, content, flags, message = FILES[name]
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    target = "mood" if file.endswith("jsonl") else "income"
    err = refused(["--data", file, "--target", target, *flags], capfd, tmp_path)
    assert message in err
    assert re.search(r"; \w", err)  # a cure


def test_a_record_is_never_quoted(tmp_path, capfd):
    (tmp_path / "t.csv").write_text(at(4, "31,secret-diagnosis,yes"))
    err = refused(["--data", "t.csv", "--target", "income", "--categories", "sex=F|M"], capfd, tmp_path)
    assert "secret" not in err


X, Y = np.zeros((30, 4), dtype=np.float32), np.arange(30) % 2
ARRAYS = {
    "pickles": ({"x": np.array([{"a": 1}] * 30, dtype=object), "y": Y}, "holds pickled objects; reading them runs code"),
    "other lengths": ({"x": X, "y": Y[:-1]}, "'x' has the shape (30, 4) and 'y' 29 entries; need a row for each"),
    "no target": ({"x": X, "z": Y}, "has no array 'y', which --target names; there is x, z"),
    "three arrays": ({"x": X, "y": Y, "z": Y}, "has x, y, z; need two arrays"),
    "text": ({"x": np.full((30, 2), "a"), "y": Y}, "'x' holds <U1; need whole or floating numbers"),
    "not finite": ({"x": np.where(np.arange(30)[:, None] == 7, np.nan, X), "y": Y}, "record 7 of 'x' is not finite"),
    "a table of targets": ({"x": X, "y": X}, "'y' has the shape (30, 4); need one number for each record"),
    "floating classes": ({"x": X, "y": Y + 0.5}, "'y' holds floating numbers; say --loss squared"),
    "no records": ({"x": X[:0], "y": Y[:0]}, "has no records"),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_broken_arrays(name, tmp_path, capfd):
    arrays, message = ARRAYS[name]
    np.savez(tmp_path / "a.npz", **arrays)
    assert message in refused(["--data", "a.npz"], capfd, tmp_path)


def test_a_damaged_npz(tmp_path, capfd):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 half of it")
    assert "a.npz: not an .npz file, or damaged; save it anew" in refused(["--data", "a.npz"], capfd, tmp_path)


@pytest.fixture
def pictures(tmp_path):
    for kind in ("cat", "dog"):
        (tmp_path / "pictures" / kind).mkdir(parents=True)
        for k in range(12):
            Image.new("L", (8, 8), 20 * k).save(tmp_path / "pictures" / kind / f"{k}.png")
    return tmp_path / "pictures"


def test_an_empty_folder(tmp_path, capfd):
    (tmp_path / "pictures").mkdir()
    assert "pictures: is a folder without images; need a folder" in refused(["--data", "pictures"], capfd, tmp_path)


def test_an_image_of_another_size(pictures, tmp_path, capfd):
    Image.new("L", (9, 8)).save(pictures / "dog" / "5.png")
    err = refused(["--data", "pictures"], capfd, tmp_path)
    assert "pictures/dog/5.png: 9 × 8 pixels where the first image has 8 × 8; say --size 8x8" in err


def test_a_file_that_is_no_image(pictures, tmp_path, capfd):
    (pictures / "dog" / "5.png").write_text("no picture")
    assert "pictures/dog/5.png: cannot be read as an image; mend" in refused(["--data", "pictures"], capfd, tmp_path)


def test_a_file_of_another_kind(pictures, tmp_path, capfd):
    (pictures / "dog" / "notes.txt").write_text("notes")
    assert "notes.txt: ends in '.txt'; need images" in refused(["--data", "pictures"], capfd, tmp_path)


def test_a_folder_of_one_class(pictures, tmp_path, capfd):
    for one in (pictures / "dog").iterdir():
        one.unlink()
    assert "only one class in 'the folders'; need two" in refused(["--data", "pictures"], capfd, tmp_path)


def test_a_file_that_is_not_there(tmp_path, capfd):
    assert "nowhere.csv: is not there; give the path" in refused(["--data", "nowhere.csv"], capfd, tmp_path)


FLAGS = {
    "no target": ([], "without --target: which column"),
    "no such bounds": (["--target", "income", "--bounds", "age"], "need name=low:high"),
    "bounds upside down": (["--target", "income", "--bounds", "age=9:1"], "the lower one first"),
    "no such categories": (["--target", "income", "--categories", "sex"], "need name=one|another"),
    "one of the classes twice": (["--target", "income", "--classes", "a|a"], "each once"),
    "a recipe too": (["mnist", "--target", "income"], "a recipe has data of its own"),
    "a model of texts": (["--target", "income", "--model", "minilm-head"], "as in --text review"),
    "a model that is not there": (["--target", "income", "--model", "nets.py:build"], "nets.py is not there"),
    "a size in words": (["--target", "income", "--size", "small"], "as in 32x32"),
    "a regression without bounds": (["--target", "age", "--loss", "squared"], "give them: --bounds age=low:high"),
    "a unit that is no column": (["--target", "income", "--unit", "owner"], "owner"),
    "nobody to test on": (["--target", "income", "--held-out", "0.0000001"], "none is held out"),
}


@pytest.mark.parametrize("name", FLAGS)
def test_flags_that_do_not_fit(name, tmp_path, capfd):
    (tmp_path / "t.csv").write_text(table(HEAD))
    flags, message = FLAGS[name]
    assert message in refused([*flags, "--data", "t.csv"], capfd, tmp_path)


def test_flags_of_own_data_without_data(tmp_path, capfd):
    assert "--target without --data" in refused(["--target", "income"], capfd, tmp_path)
