"""`sordino COMMAND …`: finds the command, parses its arguments, reports bad input in one line.

Bad input has exit code 2.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import entry_points

from sordino.version import __version__

COMMANDS = {
    "train": ("sordino.app.cli.train", "train a model privately and print what can be claimed"),
    "resume": ("sordino.app.cli.resume", "go on with a run that was stopped, killed or failed"),
    "finetune": ("sordino.app.cli.finetune", "fine-tune a pretrained text encoder on labelled texts"),
    "tune": ("sordino.app.cli.tune", "search for hyper-parameters, with the search in the claim"),
    "recipes": ("sordino.app.cli.recipes", "list what can be trained, with measured accuracy, epsilon and time"),
    "data": ("sordino.app.cli.data", "get, list and check data sets"),
    "predict": ("sordino.app.cli.predict", "predict new records with a trained model"),
    "export": ("sordino.app.cli.export", "write a trained network as safetensors, torch.export or ONNX"),
    "generate": ("sordino.app.cli.generate", "write synthetic rows or texts that carry a claim"),
    "report": ("sordino.app.cli.report", "write the report of a run again"),
    "doctor": ("sordino.app.cli.doctor", "say why the accuracy of a run is low, from what it has released"),
    "compare": ("sordino.app.cli.compare", "show runs side by side, and where they differ"),
    "account": ("sordino.app.cli.account", "compute the epsilon of a training run, and say how it came about"),
    "calibrate": ("sordino.app.cli.calibrate", "find the noise, steps or rate that meets a target"),
    "tradeoff": ("sordino.app.cli.tradeoff", "say what the best attack can do against a run"),
    "plan": ("sordino.app.cli.plan", "open a page with sliders, on this machine: what would a run cost?"),
    "audit": ("sordino.app.cli.audit", "test a mechanism, replay a run, measure a lower bound on epsilon"),
    "attack": ("sordino.app.cli.attack", "try known attacks on a run, or play a guessing game"),
    "budget": ("sordino.app.cli.budget", "keep one privacy budget of a dataset across runs"),
}
"""Name, module with a dataclass `Command`, one line of help."""


def all_commands() -> dict[str, tuple[str, str]]:
    """Returns the commands that the main program `sordino` knows: those of this package and those that installed
    packages add, such as `lab` of sordino-lab.

    A package adds one by an entry point in the group `sordino.commands`: its name is the command, its value the module.
    The line of help is the summary of the package, so that nothing of it is imported for `sordino --help`.
    """
    added = {
        point.name: (point.value, point.dist.metadata["Summary"] if point.dist is not None else point.value)
        for point in entry_points(group="sordino.commands")
    }
    return {**COMMANDS, **added}


_COMMAND_GROUPS = {
    "Train a model and use it": (
        "train",
        "resume",
        "finetune",
        "tune",
        "recipes",
        "data",
        "predict",
        "export",
        "generate",
        "report",
        "doctor",
        "compare",
    ),
    "Compute what training costs": ("account", "calibrate", "tradeoff", "plan", "budget"),
    "Test what is claimed": ("audit", "attack"),
}
"""Titles in the help, and the commands under each."""
FIRST_STEPS = (
    "sordino data inspect people.csv --target income --out schema.toml",
    "sordino train --data people.csv --schema schema.toml --epsilon 3 --out runs/people",
    "sordino predict runs/people new.csv --out predictions.csv",
    "sordino report runs/people",
)
"""From a file to a model in use, as the help shows it and a test runs it."""

DISTRIBUTED_COMMANDS = ("train", "resume")
"""What several ranks can do together."""
BAD_INPUT = 2


def main(argv: list[str] | None = None) -> int:
    """Runs `sordino COMMAND …`; returns the exit code: 0 done, 2 bad input, 130 interrupted."""
    arguments = sys.argv[1:] if argv is None else argv
    # Help and version need no command.
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help_text())
        return 0 if arguments else BAD_INPUT
    if arguments[0] in ("-V", "--version"):
        from sordino.rng.keystream import describe_status

        print(f"sordino {__version__} (noise: {describe_status()})")
        return 0
    name, *rest = arguments
    commands = all_commands()
    if name not in commands:
        from sordino.app.suggestions import did_you_mean

        # All commands are listed only where none is near.
        close = did_you_mean(name, commands) or f"; there is: {', '.join(commands)}"
        print(f"sordino: no command {name!r}{close}; see `sordino --help`", file=sys.stderr)
        return BAD_INPUT
    # Only training runs on several ranks; other commands would do everything several times.
    if name not in DISTRIBUTED_COMMANDS and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        print(
            f"sordino {name}: not on several ranks; of the commands {' and '.join(DISTRIBUTED_COMMANDS)} are",
            file=sys.stderr,
        )
        return BAD_INPUT
    module, about = commands[name]
    try:
        # Only the module of this command is imported, so that `sordino --help` is fast.
        from sordino.app.cli.argument_parsing import parse_command

        return int(parse_command(import_module(module).Command, rest, f"sordino {name}", about).run())
    except (ValueError, TypeError) as error:
        # Several faults of one file stand on lines of their own; every other message is one line.
        message = str(error) if getattr(error, "has_several_lines", False) else " ".join(str(error).split())
        print(f"sordino {name}: {message}", file=sys.stderr)
        return BAD_INPUT
    except ImportError as error:
        if "pip install" not in str(error):
            raise
        print(f"sordino {name}: {error}", file=sys.stderr)  # an extra that is not installed
        return BAD_INPUT
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever reads, `head` say, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at the end
        return 141  # what a shell says of a program that a closed pipe ended: 128 + SIGPIPE


def _help_text() -> str:
    """Returns the main help text, that of `sordino --help`."""
    commands = all_commands()
    width = max(map(len, commands))
    lines = [
        "sordino: differentially private training that is tested while it runs",
        "",
        "usage: sordino COMMAND [options]",
    ]
    # From a file to a model in use, in four lines.
    lines += ["", "First steps", *(f"  $ {typed}" for typed in FIRST_STEPS)]
    # Commands that packages add come last.
    grouped = {name for names in _COMMAND_GROUPS.values() for name in names}
    added = tuple(name for name in commands if name not in grouped)
    for title, names in {**_COMMAND_GROUPS, "Added by installed packages": added}.items():
        if names:
            lines += ["", title, *(f"  {name:<{width}}  {commands[name][1]}" for name in names)]
    return "\n".join([*lines, "", "sordino COMMAND --help says more; --version prints the version."])


if __name__ == "__main__":
    sys.exit(main())
