"""What a person sees who asks for help, types another library's word, or misspells one."""

import shlex
import tomllib
from dataclasses import fields
from importlib import import_module

import pytest

import sordino
from sordino.app.cli import main as command_line
from sordino.app.cli.argument_parsing import parse_command
from sordino.app.cli.flags import flag_of, known_flags
from sordino.app.cli.help_page import HelpPage, render_help
from sordino.app.option_names import FURTHER_NAMES
from sordino.app.runs.settings import make_settings

COMMANDS = {name: import_module(module).Command for name, (module, _) in command_line.COMMANDS.items()}

POSITIONAL = {"recipe", "folder", "run_dir", "names", "action", "what", "path"}
"""Fields that are typed without their name, in every command that has them."""
OTHER_POSITIONAL = {("predict", "data"), ("compare", "runs"), ("attack", "runs"), ("generate", "source")}


def show_help(name, capsys):
    with pytest.raises(SystemExit) as end:
        command_line.main([name, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_shows_every_option_once_and_an_example(name, capsys):
    shown = show_help(name, capsys)
    for one in fields(COMMANDS[name]):
        option = flag_of(one.name)
        heads = [line.split()[0].rstrip(",") for line in shown.splitlines() if line[:2] == "  " != line[2:4] != ""]
        positional = one.name in POSITIONAL or (name, one.name) in OTHER_POSITIONAL
        assert heads.count(option) == (0 if positional else 1), option
    assert "Examples" in shown
    assert f"$ sordino {name}" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_in_the_help_is_parsed_by_its_command(name):
    for _, typed in getattr(COMMANDS[name], "help_page", HelpPage()).examples:
        _, used, *arguments = shlex.split(typed)
        assert parse_command(COMMANDS[used], arguments, f"sordino {used}", "")


@pytest.mark.parametrize("name", ["train", "tune"])
def test_every_option_of_a_run_is_in_a_group(name, capsys):
    shown = show_help(name, capsys)
    assert "\nOthers\n" not in shown
    for title in ("Data of your own", "Task and model", "Privacy", "Optimisation, which costs no privacy", "Output"):
        assert f"\n{title}\n" in shown


def test_the_help_of_train_shows_defaults(capsys):
    shown = " ".join(show_help("train", capsys).split())
    assert "--learning-rate, --lr NUMBER Of the optimizer. [0.02]" in shown
    assert "--delta, --target-delta NUMBER The δ of the claim. [1e-05]" in shown
    assert "The value in [brackets]" in shown


def test_no_line_of_the_help_is_wider_than_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = render_help(COMMANDS["train"], "sordino train", "train")
    lines = [line for line in text.splitlines() if "$ sordino" not in line]
    assert max(map(len, lines)) <= 80


def test_the_main_help_groups_all_commands_and_begins_with_first_steps(capsys):
    assert command_line.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, (_, about) in command_line.COMMANDS.items():
        assert any(line.split()[:1] == [name] and about in line for line in shown.splitlines()), name
    assert shown.index("First steps") < shown.index("Train a model and use it")


def test_every_further_name_means_an_option_of_some_command():
    options = {one.name for command in COMMANDS.values() for one in fields(command)}
    assert set(FURTHER_NAMES) <= options


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_hidden_by_another_name(name):
    flags = known_flags(COMMANDS[name])
    assert all(flags[flag_of(one.name)] == flag_of(one.name) for one in fields(COMMANDS[name]))


@pytest.mark.parametrize(
    ("typed", "field", "value"),
    [
        ("--lr 0.3", "learning_rate", 0.3),
        ("--lr=0.3", "learning_rate", 0.3),
        ("--eps 2", "epsilon", 2.0),
        ("--clip 0.5", "bound", 0.5),
        ("--max-grad-norm 0.5", "bound", 0.5),
        ("--max_grad_norm 0.5", "bound", 0.5),
        ("--sigma 1.1", "noise_multiplier", 1.1),
        ("--sample-rate 0.1", "rate", 0.1),
        ("--epochs 2", "epochs", 2.0),
        ("--batch-size 64", "batch_size", 64),
        ("--label income", "target", "income"),
        ("--clipping automatic", "weigher", "automatic"),
    ],
)
def test_other_libraries_words_mean_our_options(typed, field, value):
    command = parse_command(COMMANDS["train"], ["spiral", *typed.split()], "sordino train", "")
    assert getattr(command, field) == value


def test_fit_takes_the_same_words():
    settings = make_settings("spiral", {"lr": 0.3, "eps": 2.0, "clip": 0.5, "num_epochs": 2})
    assert (settings.recipe.learning_rate, settings.recipe.epsilon, settings.recipe.bound) == (0.3, 2.0, 0.5)
    assert settings.options.epochs == 2
    with pytest.raises(ValueError, match="two names of one option"):
        make_settings("spiral", {"lr": 0.3, "learning_rate": 0.2})


def test_batch_size_and_epochs_become_rate_and_steps(tmp_path):
    history = sordino.fit("spiral", records=400, batch_size=50, epochs=3, seed=0, out=tmp_path / "run")
    table = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (table["recipe"]["rate"], table["recipe"]["steps"]) == (50 / 400, 24)  # 3 passes of 8 lots
    assert "batch_size" not in table["options"]
    assert "epochs" not in table["options"]
    # The same run, said in our own words, has the same claim.
    same = sordino.fit("spiral", records=400, rate=0.125, steps=24, seed=0, out=tmp_path / "same")
    assert history.claim == same.claim
    assert any("dataset size" in name for name in history.claim.not_covered)
