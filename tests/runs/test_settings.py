"""Flags, files and names become settings: later ones win, whatever is wrong is a ValueError or TypeError of one line."""

import tomllib
from contextlib import suppress
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from sordino.app import toml_writer
from sordino.app.runs import RECIPES
from sordino.app.runs.recipe import FIELDS
from sordino.app.runs.settings import Options, make_settings, read_config


def test_a_run_is_told_again_by_its_own_configuration(tmp_path):
    for recipe in RECIPES:
        before = make_settings(recipe, {"seed": 3, "steps": 7, "sampler": "shuffle"}, {"gamma": 1.0})
        (tmp_path / "config.toml").write_text(toml_writer.dumps(before.table()))
        assert read_config(tmp_path / "config.toml").to_settings() == before


def test_flags_win_over_the_file(tmp_path):
    (tmp_path / "f.toml").write_text('name = "spiral"\nsteps = 7\nbound = 2.0\nseed = 1')
    given = {**read_config(tmp_path / "f.toml").fields, "steps": 9}
    settings = make_settings(None, given)
    assert (settings.recipe.steps, settings.recipe.bound, settings.options.seed) == (9, 2.0, 1)


def test_the_recipe_tuned_nearest_to_epsilon_is_taken():
    assert make_settings("mnist", {"epsilon": 1.1}).recipe.epsilon == 1.1


def test_what_was_measured_is_forgotten_when_a_field_changes():
    measured = RECIPES[0].but(accuracy=0.98, seeds=3)
    assert make_settings(measured, {"steps": 5}).recipe.accuracy is None


names = st.sampled_from([*FIELDS, *(f.name for f in fields(Options))]) | st.text(max_size=5)
values = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)


@given(st.dictionaries(names, values, max_size=4), st.sampled_from(["mnist", "spiral", None]))
@hypothesis_settings(deadline=None)
def test_any_fields_are_settled_or_refused(table, recipe):
    with suppress(ValueError, TypeError):
        make_settings(recipe, table)


keys = st.sampled_from(["steps", "name", "recipe", "options", "parameters", "resolved", "format"]) | st.text(max_size=4)
plain = st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5)


@given(st.dictionaries(keys, plain | st.dictionaries(keys, plain, max_size=3), max_size=4))
@hypothesis_settings(deadline=None)
def test_toml_comes_back_as_it_was_written(table):
    assert tomllib.loads(toml_writer.dumps(table)) == table


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "f.toml"


@given(
    st.binary(max_size=80)
    | st.text(max_size=80).map(str.encode)
    | st.dictionaries(keys, plain | st.dictionaries(keys, plain, max_size=3), max_size=4)
    .map(toml_writer.dumps)
    .map(str.encode)
)
@hypothesis_settings(deadline=None)
def test_any_file_is_read_or_refused(file, raw):
    file.write_bytes(raw)
    with suppress(ValueError, TypeError):
        config = read_config(file)
        make_settings("spiral", config.fields, config.parameters)
    with suppress(ValueError, TypeError):
        read_config(file).to_settings()
