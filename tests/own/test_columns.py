"""Columns as numbers, and who is held out: each record by itself, as a slow reading of it says."""

import json
import math

import numpy as np
import pytest

from sordino.app.data.own.bad_file import FaultyFile
from sordino.app.data.own.columns import choose_scheme, column_from_table
from sordino.app.data.own.declared_columns import DeclaredColumns, read_schema
from sordino.app.data.own.held_out import choose_held_out
from sordino.app.data.own.rows import read_table
from sordino.app.runs.declared_file import OwnFile, recipe_for_own_data
from sordino.app.runs.run_data import load_own_file

TABLE = "age,sex,town,pay\n31,F,Ulm,2.5\n64,M,Jena,-1\n150,F,Rome,0\n"
DECLARED = DeclaredColumns({"age": (0, 100)}, {"town": ("Ulm", "Jena", "*")})


@pytest.fixture
def rows(tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    return read_table(tmp_path / "t.csv")


def test_a_row_is_what_was_declared_of_it(rows):
    made = choose_scheme(rows, DECLARED, ())
    numbers = ["pay", "age in [0, 100]", "age, squared"]
    assert made.titles == [*numbers, "sex=F", "sex=M", "town=Ulm", "town=Jena", "town=*"]
    assert made.unbounded == 1
    by_hand = [
        [2.5, 2 * 31 / 100 - 1, 2 * 0.38**2 - 1, 1, 0, 1, 0, 0],
        [-1, 2 * 64 / 100 - 1, 2 * 0.28**2 - 1, 0, 1, 0, 1, 0],
        [0, 1, 1, 1, 0, 0, 0, 1],  # cut to 100; a town that is every other one
    ]
    np.testing.assert_allclose(made.encode(rows), by_hand, rtol=1e-6)


def test_only_what_was_not_declared_is_read_off(rows):
    assert all("age" not in told and "town" not in told for told in choose_scheme(rows, DECLARED, ()).read_off)
    whole = DECLARED.merged_with(DeclaredColumns({"pay": (-5, 5)}, {"sex": ("F", "M")}))
    assert choose_scheme(rows, whole, ()).read_off == ()


def test_declared_columns_make_a_record_s_numbers_its_own(rows, tmp_path):
    """What the other records are does not matter: the scheme of one record alone is the same."""
    whole = DECLARED.merged_with(DeclaredColumns({"pay": (-5, 5)}, {"sex": ("F", "M")}))
    together = choose_scheme(rows, whole, ()).encode(rows)
    for k, line in enumerate(TABLE.splitlines()[1:]):
        (tmp_path / "one.csv").write_text(TABLE.splitlines()[0] + "\n" + line + "\n")
        alone = read_table(tmp_path / "one.csv")
        np.testing.assert_array_equal(choose_scheme(alone, whole, ()).encode(alone)[0], together[k])


def test_a_schema_file_says_the_same_as_flags(tmp_path):
    (tmp_path / "s.toml").write_text('[bounds]\nage = [0, 100]\n[categories]\ntown = ["Ulm", "Jena", "*"]\n')
    assert read_schema(tmp_path / "s.toml").columns == DECLARED


@pytest.mark.parametrize("text", ["[bounds", "[limits]\nage = [0, 1]", "[bounds]\nage = 3", '[categories]\nsex = "F"'])
def test_a_schema_file_that_says_something_else(tmp_path, text):
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(ValueError, match=r"need|not TOML"):
        read_schema(tmp_path / "s.toml")


def test_one_record_less_moves_nobody_to_the_other_side():
    records = [str(k).encode() for k in range(2000)]
    whole = dict(zip(records, choose_held_out(records, 0.1), strict=True))
    without = dict(zip(records[1:], choose_held_out(records[1:], 0.1), strict=True))
    assert all(whole[one] == side for one, side in without.items())
    # A fair coin of 0.1 for each: within five standard deviations, 5 √(0.1 · 0.9 / 2000).
    assert sum(whole.values()) / 2000 == pytest.approx(0.1, abs=0.034)


def test_quotes_blank_lines_and_a_mark_at_the_beginning(tmp_path):
    (tmp_path / "t.csv").write_bytes('\ufeffa,b\n\n"1, or ""two""","x\ny"\n3,4\n'.encode())
    found = read_table(tmp_path / "t.csv")
    assert found.columns == ("a", "b")
    assert found.cells == [['1, or "two"', "x\ny"], ["3", "4"]]
    assert found.lines == [3, 5]


MORE = "born,town,pay\n2020-01-06,Ulm,2\n,Oslo,\n2030-05-05,Ulm,NA\n"
KINDS = DeclaredColumns(
    bounds={"pay": (0, 4)}, dates={"born": ("2020-01-01", "2020-12-31")}, hashed={"town": 8}, missing=("born", "pay")
)


def test_dates_hashed_names_and_missing_numbers_by_hand(tmp_path):
    (tmp_path / "t.csv").write_text(MORE)
    rows = read_table(tmp_path / "t.csv")
    made = choose_scheme(rows, KINDS, ())
    numbers = dict(zip(made.titles, made.encode(rows).T, strict=True))
    assert made.read_off == ()
    assert rows.faults == []
    # A missing number is the middle of its range, and says so.
    np.testing.assert_allclose(numbers["pay in [0, 4]"], [0, 0, 0])
    np.testing.assert_allclose(numbers["pay is missing"], [0, 1, 1])
    # 6 January is day 5 of 365, a Monday, day 6 of the year; a day after the last is cut to it.
    year = 2 * np.pi * 6 / 365.25
    np.testing.assert_allclose(numbers["born in its range"], [2 * 5 / 365 - 1, 0, 1], atol=1e-6)
    np.testing.assert_allclose(numbers["born year, sine"][:2], [np.sin(year), 0], atol=1e-6)
    np.testing.assert_allclose(numbers["born week, cosine"][:2], [1, 0], atol=1e-6)
    np.testing.assert_allclose(numbers["born is missing"], [0, 1, 0])
    # The same town has the same place, and every town one place.
    places = np.stack([numbers[f"town hashed to {place}"] for place in range(8)], axis=1)
    np.testing.assert_array_equal(places.sum(axis=1), 1)
    np.testing.assert_array_equal(places[0], places[2])
    assert not np.array_equal(places[0], places[1])


def test_missing_needs_a_declared_range():
    with pytest.raises(ValueError, match="middle of a declared range"):
        DeclaredColumns(missing=("age",))
    with pytest.raises(ValueError, match="of one kind"):
        DeclaredColumns(bounds={"age": (0, 1)}, hashed={"age": 4})


def test_all_faults_of_a_file_are_told_at_once(tmp_path):
    (tmp_path / "t.csv").write_text("age,sex,y\n1,F,a\n,F,b\nx,F,a\n2,M\n3,X,b\n,M,a\n")
    own = OwnFile(path=str(tmp_path / "t.csv"), target="y", bounds={"age": (0, 9)}, categories={"sex": ("F", "M")})
    with pytest.raises(FaultyFile) as caught:
        load_own_file(own, recipe_for_own_data(own, {"epsilon": 1.0}), print)
    words = str(caught.value)
    assert "5 faults" in words
    for part in (
        "in lines 3, 7; mend",
        "no finite number in line 4",
        "2 cells where",
        "none of its 2 declared",
        "--missing age",
    ):
        assert part in words


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_the_delimiter_is_read_off_the_names(tmp_path, mark):
    path = tmp_path / "t.csv"
    path.write_text(f"\ufeffage{mark}town\n31{mark}Ulm, old town\n", encoding="utf-8")
    made = read_table(path)
    assert (made.columns, made.cells) == (("age", "town"), [["31", "Ulm, old town"]])


def test_a_bounded_number_becomes_its_square_too_and_a_long_range_of_amounts_its_logarithm(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("gain,debt,age,none\n0,-5,20,\n99,0,30,10\n100000,50000,40,5000\n")
    declared = DeclaredColumns(
        bounds={"gain": (0, 100_000), "debt": (-100_000, 100_000), "age": (0, 100), "none": (10, 5010)},
        missing=("none",),
    )
    rows = read_table(path)
    scheme = choose_scheme(rows, declared, ())
    assert [title for title in scheme.titles if "logarithm" in title] == ["gain, logarithm", "none, logarithm"]
    numbers = dict(zip(scheme.titles, scheme.encode(rows).T, strict=True))
    assert not rows.faults
    np.testing.assert_allclose(numbers["age, squared"], [2 * 0.36 - 1, 2 * 0.16 - 1, 2 * 0.04 - 1], rtol=1e-6)
    assert numbers["none, squared"].tolist()[:2] == [0, 1]
    expected = [-1, 2 * math.log(100) / math.log(100_001) - 1, 1]
    np.testing.assert_allclose(numbers["gain, logarithm"], expected, rtol=1e-6)
    # A missing number is the middle of both ranges, and is marked.
    np.testing.assert_allclose(numbers["none, logarithm"][:2], [0, -1], atol=1e-6)
    assert numbers["none is missing"].tolist() == [1, 0, 0]
    # What is written to a run is read again, and a column of before has no logarithm.
    for column in scheme.columns:
        assert column_from_table(json.loads(json.dumps(column.table()))) == column
    assert "logarithmic" not in next(one for one in scheme.columns if one.name == "age").table()
    assert column_from_table({"name": "gain", "bounds": [0, 100_000]}).titles == ["gain in [0, 100000]"]
