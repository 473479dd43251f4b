"""A trained model in use: `sordino.load(run)` gives a model that takes rows as they are.

    model = sordino.load("runs/people")
    model.predict([{"age": 41, "city": "Lima"}])          classes, or numbers in the target's own units
    model.predict_proba("new.csv")                        a probability for every class
    model.network                                         the torch module itself

Privacy: predictions are made of the released model and of the rows that are asked about. They cost nothing more of the
training records, whose claim is `model.claim`. The rows that are asked about are not protected by it.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino import html_views, validate
from sordino.app.data.own import arrays, image_folder, rows
from sordino.app.data.own.bad_file import BadFile, raise_faults
from sordino.app.data.own.rows import TableRows, rows_from_records
from sordino.app.runs.directory import CONFIG, MODEL, PRIVACY, Run
from sordino.app.runs.encoded_records import RecordEncoder, read_encoder
from sordino.app.runs.given_data import GIVEN
from sordino.app.runs.own_code import file_digest
from sordino.app.runs.problem import LOSSES, build_network
from sordino.app.runs.run_device import device_of, resolve_device
from sordino.app.runs.settings import Settings, read_config
from sordino.integrations.missing_library import NotInstalled

_CHUNK = 2000
_MOST_SHOWN_CLASSES = 10


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """The model of a finished run with its encoder: it takes rows of the kind it was trained on."""

    network: nn.Module
    encoder: RecordEncoder
    settings: Settings
    claim: str
    """What may be said about the privacy of the training records, in words."""
    run: Path

    def __repr__(self) -> str:
        """Returns what the model is, what it takes and what may be said of it, in a few lines."""
        return "\n".join([f"TrainedModel of {self.run}", *(f"  {name:<8} {value}" for name, value in self._describe())])

    def _repr_html_(self) -> str:
        """Returns the model as a notebook shows it."""
        return html_views.render_card(f"TrainedModel of {self.run}", self._describe())

    def _describe(self) -> list[tuple[str, str]]:
        """Returns the names and values with which a trained model is shown."""
        columns = ", ".join(self.encoder.needed_columns) or f"tensors of shape {tuple(self.encoder.shape)}"
        predicts = f"one of {', '.join(self.classes[:_MOST_SHOWN_CLASSES])}" if self.classifies else "a number"
        predicts += ", …" if len(self.classes) > _MOST_SHOWN_CLASSES else ""
        network = f"{self.settings.recipe.model} with {sum(p.numel() for p in self.network.parameters()):,} parameters"
        claim = self.claim.splitlines()[0] if self.claim else "unknown"
        return [("takes", columns), ("predicts", predicts), ("network", network), ("claim", claim)]

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the trained model's classes; empty where the target is a number. Classes without names are
        numbered.
        """
        if not self.classifies:
            return ()
        return self.encoder.classes or tuple(str(number) for number in range(self.encoder.outputs))

    @property
    def classifies(self) -> bool:
        """Whether the target is a class."""
        return LOSSES[self.settings.recipe.loss].classifies

    def predict(self, records: Any) -> list[Any]:
        """Returns what the trained model predicts for every record: its most probable class, or a number in the
        target's own units.

        Args:
            records: a path of a file or folder as it was trained on, with or without the target; a list of rows by column
                name; a pandas DataFrame; or a tensor of encoded records.

        """
        # Classes by the largest output; numbers go back to the target's own units.
        outputs = self.compute_outputs(records)
        if self.classifies:
            return [self.classes[place] for place in outputs.argmax(dim=1).tolist()]
        numbers = self.encoder.decode_numbers(outputs)
        return [row[0] if len(row) == 1 else row for row in numbers.tolist()]

    def predict_proba(self, records: Any) -> NDArray[np.float64]:
        """Returns the trained model's probability of every class for every record, (N, classes), in the order of
        `classes`.
        """
        if not self.classifies:
            raise ValueError(f"{self.run}: predicts numbers, which have no probabilities; use predict")
        return torch.softmax(self.compute_outputs(records).double(), dim=1).numpy()

    def encode(self, records: Any) -> Tensor:
        """Returns the records as the numbers that the trained model's network takes; `predict` says what
        they may be.
        """
        # Each kind of records has its own reader; a tensor is taken to be encoded already.
        if isinstance(records, Tensor):
            return records
        if self.encoder.kind == "tensors":
            raise TypeError(f"{self.run}: was trained on tensors of shape {self.encoder.shape}; give such a tensor")
        if isinstance(records, str | Path):
            return self._encode_file(Path(records))
        if isinstance(records, TableRows):
            return self._encode_rows(records)
        # Known by its methods, so that pandas need not be installed.
        if hasattr(records, "to_dict") and hasattr(records, "columns"):  # a pandas DataFrame
            records = records.to_dict("records")
        if not isinstance(records, Sequence) or not all(isinstance(one, Mapping) for one in records):
            raise TypeError(
                f"records of type {type(records).__name__}: need a path, a list of rows by column name, or a DataFrame"
            )
        return self._encode_rows(rows_from_records(records))

    def compute_outputs(self, records: Any) -> Tensor:
        """Returns what the trained model's network says of every record, (N, outputs)."""
        # A wrong shape would fail inside the network with a message about matrices.
        encoded = self.encode(records)
        if encoded.shape[1:] != torch.Size(self.encoder.shape):
            raise ValueError(f"records of shape {tuple(encoded.shape[1:])}: the model takes {self.encoder.shape}")
        device = device_of(self.network)
        with torch.no_grad():
            return torch.cat([self.network(chunk.to(device)).cpu() for chunk in encoded.split(_CHUNK)])

    def export(self, path: str | Path) -> Path:
        """Writes the trained model's network to a file that other programs read; the ending of its name says in which
        form.

        Args:
            path: .safetensors, the parameters by name; .pt2, a program of `torch.export` for any number of records; .onnx,
                for other runtimes, which needs the extra `sordino[onnx]`.

        Returns:
            The path. What the network takes are encoded records; the encoder of the run is in its encoder.json.

        """
        # The ending of the name decides the form, and nothing is written for an unknown one.
        target = Path(path)
        example = torch.zeros(2, *self.encoder.shape, device=device_of(self.network))
        if target.suffix == ".safetensors":
            state = {
                name: value.detach().cpu().contiguous().clone() for name, value in self.network.state_dict().items()
            }
            safetensors.torch.save_file(state, target)
        elif target.suffix == ".pt2":
            # The number of records stays open; everything else is fixed by the encoder.
            any_number = {0: torch.export.Dim("records", min=1)}
            program = torch.export.export(self.network, (example,), dynamic_shapes=(any_number,))
            torch.export.save(program, target)
        elif target.suffix == ".onnx":
            _export_onnx(self.network, example, target)
        else:
            raise ValueError(f"{target.name}: need a name that ends in .safetensors, .pt2 or .onnx")
        return target

    def _encode_file(self, path: Path) -> Tensor:
        """Returns the records of a file or folder as the numbers that the trained model takes."""
        if not path.exists():
            raise BadFile(path, "is not there", "give the path of a file or a folder")
        # Each kind of file has its reader; all end in the same encoder.
        if self.encoder.kind == "images":
            channels, tall, wide = self.encoder.shape
            return self.encoder.encode_array(image_folder.read_image_folder(path, (wide, tall), channels).images)
        if self.encoder.kind == "arrays":
            return self.encoder.encode_array(arrays.read_records(path, self.encoder.target))
        return self._encode_rows(rows.read_table(path))

    def _encode_rows(self, table: TableRows) -> Tensor:
        """Returns the rows of a table as the numbers that the trained model takes; raises with all faults at once."""
        # All missing columns and all faulty cells are told at once.
        lacking = [name for name in self.encoder.needed_columns if name not in table.columns]
        if lacking:
            raise BadFile(table.path, f"lacks {', '.join(lacking)}", "need every column that the model was trained on")
        encoded = self.encoder.encode_table(table)
        raise_faults(table.path, table.faults)
        return encoded


def _export_onnx(network: nn.Module, example: Tensor, target: Path) -> None:
    """Writes the trained model's network as one ONNX file, for any number of records: `records` in, `outputs` out."""
    # torch would name only the first one that is missing.
    for library in ("onnx", "onnxscript"):
        if importlib.util.find_spec(library) is None:
            raise NotInstalled(library, "onnx")
    with warnings.catch_warnings():  # those of the exporter are about its own inside
        warnings.simplefilter("ignore")
        # Without torchvision the exporter logs a line for each of its operators, none of which is used here.
        logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
        torch.onnx.export(
            network,
            (example,),
            target,
            input_names=["records"],
            output_names=["outputs"],
            dynamic_shapes=({0: torch.export.Dim("count", min=1)},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def load(run: str | Path, *, model: nn.Module | None = None, device: str | torch.device | None = None) -> TrainedModel:
    """Loads the trained model of a finished run, with the encoder that turns rows into its numbers.

    Args:
        run: a run directory of `sordino train` or `sordino.fit`.
        model: the user's own model, of a run of `fit(model, data)`: it is in no file, so it is given again.
        device: where the network is to compute: "auto", "cpu", "cuda:0"; on the CPU, or where `model` is, without it.

    Returns:
        A `TrainedModel`: `predict`, `predict_proba`, and the torch module as `network`.

    Privacy:
        Nothing is released: the model was, and using it is post-processing.

    Examples:
        >>> import sordino, tempfile, torch
        >>> history = sordino.fit("spiral", steps=20, records=500, seed=0, out=tempfile.mkdtemp())
        >>> len(sordino.load(history.run).predict(torch.zeros(3, 2)))
        3

    """
    validate.instance("run", run, (str, Path), "the path of a run directory")
    target_device = resolve_device(None if device is None else str(device))
    folder = Run.open(Path(run)).folder
    config = read_config(folder / CONFIG)
    settings, encoder = config.to_settings(), read_encoder(folder)
    recipe = settings.recipe
    # A user's own model is in no file, or in a file that must be the one it was trained from.
    if (recipe.dataset == GIVEN) != (model is not None):
        wanted = "its model is in no file; give it: sordino.load(run, model=model)"
        raise ValueError(f"{folder}: {wanted if model is None else 'its model is its own; leave yours out'}")
    if file_digest("model", recipe.model) != config.resolved.get("model_file"):
        raise ValueError(f"{folder}: {recipe.model} is not the file that the model was trained from; put it back")
    network = build_network(recipe, torch.Size(encoder.shape), encoder.outputs, encoder.unbounded, model, seed=0)
    # The parameters are those of the finished run, or of its average.
    if not (folder / MODEL).is_file():
        raise ValueError(f"{folder}: has no {MODEL}: the run is not finished; `sordino resume {folder}` goes on")
    try:
        network.load_state_dict(safetensors.torch.load_file(folder / MODEL))
    except (RuntimeError, OSError, ValueError) as error:
        raise ValueError(f"{folder / MODEL}: does not fit the run's model ({error})") from error
    if target_device is not None:
        network.to(target_device)
    words = json.loads((folder / PRIVACY).read_text("utf-8")).get("words", "")
    return TrainedModel(network.eval(), encoder, settings, str(words), folder)
