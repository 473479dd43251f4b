"""`sordino COMMAND …`: finds the command's file, parses its arguments, turns bad input into one line and exit code 2."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from sordino.version import __version__

COMMANDS = {
    "train": ("sordino.cli.train", "train a model privately and print what can be claimed"),
    "resume": ("sordino.cli.resume", "go on with a run that was stopped, killed or failed"),
    "tune": ("sordino.cli.tune", "search for hyper-parameters, with the search in the claim"),
    "recipes": ("sordino.cli.recipes", "what can be trained, with measured accuracy, epsilon and time"),
    "data": ("sordino.cli.data", "get, list and check data sets"),
    "report": ("sordino.cli.report", "a run's report, written anew"),
    "compare": ("sordino.cli.compare", "runs side by side, and where they differ"),
    "account": ("sordino.cli.account", "epsilon of a training run, and how it came about"),
    "calibrate": ("sordino.cli.calibrate", "the noise, steps or rate that meets a target"),
    "tradeoff": ("sordino.cli.tradeoff", "what the best attack can do"),
    "plan": ("sordino.cli.plan", "what would it cost? a page with sliders, on this machine"),
    "lab": ("sordino.cli.lab", "every figure and table of the sources, from one command each"),
    "audit": ("sordino.cli.audit", "test a mechanism, replay a run, measure a lower bound beside its claim"),
    "attack": ("sordino.cli.attack", "what known attacks do to a run, and a game"),
    "budget": ("sordino.cli.budget", "the privacy budget of a dataset, across runs"),
}
"""Name, module with a dataclass `Command`, one line of help."""

RANKED = ("train", "resume")
"""What several ranks can do together."""
USAGE = 2


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 2 bad input, 130 interrupted."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0 if arguments else USAGE
    if arguments[0] in ("-V", "--version"):
        from sordino.random.compiled import status

        print(f"sordino {__version__} (noise: {status()})")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        print(f"sordino: no command {name!r}; there is: {', '.join(COMMANDS)}", file=sys.stderr)
        return USAGE
    if name not in RANKED and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        print(f"sordino {name}: not on several ranks; of the commands {' and '.join(RANKED)} are", file=sys.stderr)
        return USAGE
    from sordino.cli.parsing import parse

    module, about = COMMANDS[name]
    try:
        return int(parse(import_module(module).Command, rest, f"sordino {name}", about).run())
    except (ValueError, TypeError) as error:
        print(f"sordino {name}: {' '.join(str(error).split())}", file=sys.stderr)
        return USAGE
    except ImportError as error:
        if "pip install" not in str(error):
            raise
        print(f"sordino {name}: {error}", file=sys.stderr)  # an extra that is not installed
        return USAGE
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever reads, `head` say, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at the end
        return 141  # what a shell says of a program that a closed pipe ended: 128 + SIGPIPE


def _help() -> str:
    width = max(map(len, COMMANDS))
    rows = [f"  {name:<{width}}  {about}" for name, (_, about) in COMMANDS.items()]
    head = ["sordino: private training whose claims are true", "", "usage: sordino COMMAND [options]", ""]
    return "\n".join([*head, *rows, "", "sordino COMMAND --help says more; --version prints the version."])


if __name__ == "__main__":
    sys.exit(main())
