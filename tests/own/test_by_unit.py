"""Own tables and texts by a column that says whose a record is: people are drawn, clipped, held out and claimed."""

import numpy as np
import pytest
import torch

import sordino
from bench.resilience import are_same
from sordino.app.cli.main import main
from sordino.app.runs.declared_file import OwnFile, recipe_for_own_data
from sordino.app.runs.fit import resume
from sordino.app.runs.run_data import load_own_file
from tests.runs.cut_off import Crash, CrashesAt

RECIPE = {"epsilon": 8.0, "steps": 12, "rate": 0.2, "unit": "person", "unit_records": 4}
TINY = RECIPE | {"seed": 5}


@pytest.fixture
def visits(tmp_path):
    """900 visits of 90 people, of whom some came often; who is told apart by sleep."""
    rng = np.random.default_rng(0)
    person = rng.integers(0, 90, 900) * rng.integers(0, 2, 900)  # half of all visits are of person 0
    sleep = rng.normal(7, 2, 900)
    ill = np.where(sleep + rng.normal(0, 0.5, 900) < 7, "yes", "no")
    rows = [f"p{who},{hours:.2f},{what}\n" for who, hours, what in zip(person, sleep, ill, strict=True)]
    path = tmp_path / "visits.csv"
    path.write_text("person,sleep,ill\n" + "".join(rows))
    return path


def own(path, **more):
    return OwnFile(path=str(path), target="ill", **({"bounds": {"sleep": (0, 24)}, "classes": ("no", "yes")} | more))


def test_the_claim_is_about_people(visits, tmp_path):
    claim = sordino.fit("linear", own(visits), out=tmp_path / "run", **TINY).claim
    assert claim.unit == "person"
    assert "one person added or removed" in str(claim)
    assert "which records are of one person, by declaration" in claim.rests_on
    assert not any("read off" in one for one in claim.not_covered)
    assert claim.epsilon <= 8.0


def test_nobody_is_on_both_sides_and_nobody_s_name_is_learnt_from(visits):
    recipe = recipe_for_own_data(own(visits), RECIPE)
    found = load_own_file(own(visits, held_out=0.3), recipe, lambda _: None)
    people = [line.split(",")[0] for line in visits.read_text().splitlines()[1:]]
    train, units = found.train.tensors, found.units
    assert found.encoder.titles == ["sleep in [0, 24]", "sleep, squared"]
    assert len(units) == len(train[0])
    assert len(train[0]) + len(found.test) == 900
    sizes = sorted(torch.bincount(units).tolist())
    counts = [people.count(who) for who in dict.fromkeys(people)]
    assert [n for n in sizes if n] == sorted(counts[int(k)] for k in units.unique())  # people are whole
    assert 0 < int(found.drawn) < len(counts)


def test_a_person_s_other_visits_do_not_move_who_is_held_out(visits):
    recipe = recipe_for_own_data(own(visits), RECIPE)
    before = load_own_file(own(visits), recipe, lambda _: None)
    head, *rows = visits.read_text().splitlines()
    visits.write_text("\n".join([head, *(row for row in rows if not row.startswith("p7,"))]) + "\n")
    after = load_own_file(own(visits), recipe, lambda _: None)
    gone = sum(row.startswith("p7,") for row in rows)
    assert gone
    assert (len(before.train), len(before.test)) in (
        (len(after.train) + gone, len(after.test)),
        (len(after.train), len(after.test) + gone),
    )


def test_it_resumes_bit_equal(visits, tmp_path):
    sordino.fit("linear", own(visits), out=tmp_path / "whole", **TINY)
    with pytest.raises(Crash):
        sordino.fit("linear", own(visits), out=tmp_path / "cut", view=CrashesAt(5), **TINY)
    resume(tmp_path / "cut")
    assert all(are_same(tmp_path / "whole", tmp_path / "cut").values())


def test_it_learns(visits, tmp_path):
    history = sordino.fit(
        "linear", own(visits), out=tmp_path / "r", unit="person", epsilon=30.0, steps=150, learning_rate=0.1
    )
    assert history.test_accuracy > 0.8  # the larger class is about a half


def test_texts_by_command(tmp_path, capfd):
    rng = np.random.default_rng(1)
    lines = [
        f'{{"who": "w{rng.integers(40)}", "said": "{["good fine", "awful bad"][mood]} day", "mood": "{"gb"[mood]}"}}\n'
        for mood in rng.integers(0, 2, 400)
    ]
    (tmp_path / "said.jsonl").write_text("".join(lines))
    flags = [
        "--data",
        str(tmp_path / "said.jsonl"),
        "--text",
        "said",
        "--target",
        "mood",
        "--model",
        "words",
        "--unit",
        "who",
    ]
    assert (
        main(["train", *flags, "--epsilon", "8", "--steps", "20", "--no-report", "--out", str(tmp_path / "run")]) == 0
    )
    assert "one who added or removed" in capfd.readouterr().out


REFUSED = {
    "no such column": ({"unit": "owner"}, {}, "owner"),
    "what is learnt": ({"unit": "ill"}, {}, "is what is learnt"),
    "bounds that would be found by record": ({}, {"bounds": {}}, "found by record, not by person"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name, visits, tmp_path):
    changes, more, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        sordino.fit("linear", own(visits, **more), out=tmp_path / "r", **TINY | changes)


def test_arrays_have_no_column_of_people(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((40, 3), np.float32), y=np.arange(40) % 2)
    with pytest.raises(ValueError, match=r"Private\.draws takes ids"):
        sordino.fit("mlp", OwnFile(path=str(tmp_path / "a.npz"), target="y"), out=tmp_path / "r", **TINY)
