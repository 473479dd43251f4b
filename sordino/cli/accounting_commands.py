"""The accounting commands, to be merged into `sordino.cli.main.COMMANDS`."""

COMMANDS = {
    "account": ("sordino.cli.account", "epsilon of a training run, and how it came about"),
    "calibrate": ("sordino.cli.calibrate", "the noise, steps or rate that meets a target"),
    "tradeoff": ("sordino.cli.tradeoff", "what the best attack can do"),
    "budget": ("sordino.cli.budget", "the privacy budget of a dataset, across runs"),
}
"""Name, module with a dataclass `Command`, one line of help."""
