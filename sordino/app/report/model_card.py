"""The model card of a run: what the network does, what it was trained on, what may be said of it, and its limits.

Mitchell et al. 2019, *Model Cards for Model Reporting* (arXiv:1810.03993), for a privately trained model.

Privacy: a card is made to be published with the model. It describes the training records by what was declared of them
before they were read. Their number is not on it, and categories, classes or bounds that were read off the records are
named as such and not listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sordino.app.report.evidence import Evidence

CARD = "MODEL_CARD.md"

_READ_OFF = "read off the records, so not listed here"
_FOUND_PRIVATELY = "bounds found privately, within the ε"
_MOST_LISTED = 12
"""Categories that are listed by name; of more only the number is told."""


@dataclass(frozen=True)
class CardFacts:
    """What a model card says beside the facts that a report has as well."""

    task: list[tuple[str, str]]
    columns: list[tuple[str, str, str]]
    """Name, kind, and what was declared."""
    limits: list[tuple[str, str]]
    use: str


def describe_card(evidence: Evidence, encoder: Mapping[str, Any]) -> CardFacts:
    """Returns what the model card of a run says about its task, its data and its limits.

    Args:
        evidence: the run.
        encoder: the content of its encoder.json; empty if there is none.

    """
    # Only what was declared is repeated; what was read off the records is said to be that and no more.
    declared = evidence.config.get("data")
    own_data = declared if isinstance(declared, Mapping) else {}
    return CardFacts(
        _describe_task(evidence, encoder, own_data),
        _describe_columns(evidence, encoder, own_data),
        _describe_limits(evidence, encoder),
        _describe_use(evidence, encoder),
    )


def _describe_task(evidence: Evidence, encoder: Mapping[str, Any], own: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the rows of a model card about what the network predicts, from what, and how it was trained."""
    # Everything comes from config.toml and encoder.json, which hold public facts alone.
    recipe = dict(evidence.config.get("recipe") or {})
    target = str(encoder.get("target") or own.get("target") or "the class of a record")
    rows = [("predicts", target), ("from", _KINDS.get(str(encoder.get("kind")), "records"))]
    if recipe.get("loss", "cross-entropy") == "cross-entropy":
        # Classes that were read off the records are needed to use the model, but are not declared facts.
        names = None if own.get("read_off_records") else own.get("classes")
        count = evidence.get("resolved", "classes")
        rows.append(
            ("classes", ", ".join(map(str, names)) if names else f"{count}, {_READ_OFF}" if own else f"{count}")
        )
    network = str(recipe.get("model", "unknown"))
    if recipe.get("features", "none") != "none":
        network = f"{recipe['features']}, frozen, then {network}"
    # Runs of earlier versions may lack a field, so each is optional.
    trainable = evidence.get("resolved", "trainable")
    rows.append(("network", network + (f", {trainable:,} trained parameters" if isinstance(trainable, int) else "")))
    rows.append(
        ("trained by", f"{recipe.get('method', 'dpsgd')}, {evidence.steps:,} steps, {recipe.get('optimizer', 'sgd')}")
    )
    return rows


_KINDS = {
    "table": "rows of a table",
    "text": "a text",
    "images": "an image",
    "arrays": "an array of numbers",
    "tensors": "a tensor",
}


def _describe_columns(
    evidence: Evidence, encoder: Mapping[str, Any], own: Mapping[str, Any]
) -> list[tuple[str, str, str]]:
    """Returns a row of a model card for every column of the training data, with what was declared of it."""
    if not own:
        return [(str(evidence.get("recipe", "dataset")), "a known data set", "see its own documentation")]
    if own.get("text"):
        return [(str(own["text"]), "text", "read by a public vocabulary")]
    # A table has a row for each column; other data are described as a whole.
    read_off = bool(own.get("read_off_records"))
    columns = [str(one["name"]) for one in encoder.get("columns", ()) if isinstance(one, Mapping) and "name" in one]
    if not columns:
        return [("all", _KINDS.get(str(encoder.get("kind")), "records"), "their shape")]
    rows = [_describe_column(name, own, read_off=read_off) for name in columns]
    dropped = [str(name) for name in own.get("drop", ())]
    return [*rows, *((name, "not used", "") for name in dropped)]


def _describe_column(name: str, own: Mapping[str, Any], *, read_off: bool) -> tuple[str, str, str]:
    """Returns the row of a model card about one column: its name, its kind, and what was declared of it."""
    # The kinds exclude each other: a column has one declaration at most.
    kind, declared = "category or number", _READ_OFF
    if name in own.get("bounds", {}):
        low, high = own["bounds"][name]
        kind, declared = "number", f"{low:g} to {high:g}"
    elif name in own.get("dates", {}):
        first, last = own["dates"][name]
        kind, declared = "date", f"{first} to {last}"
    elif name in own.get("hashed", {}):
        return name, "names", f"hashed into {own['hashed'][name]} places"
    elif name in own.get("categories", {}):
        categories = [str(one) for one in own["categories"][name]]
        shown = ", ".join(categories[:_MOST_LISTED])
        kind, declared = "category", shown if len(categories) <= _MOST_LISTED else f"{len(categories)} categories"
    elif not read_off:
        declared = f"{_FOUND_PRIVATELY}, or {_READ_OFF}"
    # A schema that was itself read off the records tells their values.
    if read_off:
        declared = _READ_OFF
    return name, kind + (", may be missing" if name in own.get("missing", ()) else ""), declared


def _describe_limits(evidence: Evidence, encoder: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the limits that a model card names: those of every private model, and those of this one."""
    # What holds for every private model comes first, then what this run makes known.
    limits = [
        (
            "The people it is used on",
            "The claim protects the training records. What the model is asked about is not protected.",
        ),
        ("Groups", "Noise costs small groups most: measure accuracy for each group that matters before using it."),
        ("Other data", "The measures hold for records like the test records, which come from the same source."),
    ]
    if evidence.guarantee is None:
        limits.insert(0, ("Privacy", "There is no guarantee, so publishing the model may publish training records."))
    else:
        limits.insert(
            0, ("Several releases", "Other models trained on the same records add to the ε that is claimed here.")
        )
        # A reader of the card may never see the claim itself.
        uncovered = ", ".join(evidence.guarantee.not_covered)
        limits.insert(1, ("Not covered by the claim", uncovered or "nothing was named"))
    if encoder.get("kind") == "table":
        limits.append(
            (
                "Unknown values",
                "A number outside its bounds is cut to them; an undeclared category is refused or pooled.",
            )
        )
    return limits


def _describe_use(evidence: Evidence, encoder: Mapping[str, Any]) -> str:
    """Returns the lines of a model card that show how to predict with the run."""
    if encoder.get("kind") in ("table", "text", "images", "arrays"):
        return (
            f"```console\n$ sordino predict {evidence.name} new.csv --out predictions.csv\n```\n\n"
            f'```py\nimport sordino\n\nmodel = sordino.load("{evidence.name}")\nmodel.predict("new.csv")\n```'
        )
    return f'```py\nimport sordino\n\nmodel = sordino.load("{evidence.name}")\nmodel.predict(tensor)\n```'
