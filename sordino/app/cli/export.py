"""`sordino export RUN`: writes the network of a finished run in a form that other programs read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from sordino.app.cli.help_page import HelpPage

ENDINGS = {"safetensors": ".safetensors", "torch-export": ".pt2", "onnx": ".onnx"}
"""The endings of the file names, by which `TrainedModel.export` knows the form."""


@dataclass(frozen=True)
class Command:
    """Write the network of a finished run as safetensors, as a program of torch.export, or as ONNX."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(
            ("For other runtimes:", "sordino export runs/people --format onnx --out people.onnx"),
            ("As a program that torch runs without this package:", "sordino export runs/people --format torch-export"),
            ("The parameters by name:", "sordino export runs/people --format safetensors"),
        ),
        values={"out": "FILE"},
        notes=(
            "The network takes encoded records. How rows become such records is in the run's encoder.json; "
            "sordino.load(run).encode(rows) does it. ONNX needs the extra sordino[onnx].",
        ),
    )
    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The directory of a finished run."""
    format: Literal["safetensors", "torch-export", "onnx"] = "safetensors"
    """The form to write."""
    out: Path | None = None
    """The file to write; it must be new. Without it, `exported` with the form's ending in the run directory."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Carries out `sordino export`: writes the network to a file; returns the exit code."""
        from sordino.app.runs.trained_model import load

        # The name's ending says the form to whoever opens the file, so another one is refused.
        ending = ENDINGS[self.format]
        target = self.run_dir / f"exported{ending}" if self.out is None else self.out
        if target.suffix != ending:
            raise ValueError(f"--out {target}: --format {self.format} needs a name that ends in {ending}")
        if target.exists():
            raise ValueError(f"--out {target}: is there already; name another file")
        model = load(self.run_dir)
        target.parent.mkdir(parents=True, exist_ok=True)
        model.export(target)
        # What the file takes and gives, so that it can be used without reading the run.
        takes, gives = list(model.encoder.shape), model.encoder.outputs
        if self.json:
            print(json.dumps({"file": str(target), "format": self.format, "takes": takes, "outputs": gives}))
            return 0
        shape = " × ".join(map(str, takes))
        print(f"{target}\n  takes    records of {shape} numbers, any number of them\n  gives    {gives} outputs each")
        print(f"  encoder  {self.run_dir / 'encoder.json'}")
        print(f"  claim    {model.claim.splitlines()[0] if model.claim else 'unknown'}")
        return 0
