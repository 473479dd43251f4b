"""Saves a fine-tuned classifier in a folder and loads it again.

    finetuned.json       classes, length, plan, claim as data and in words, signal to noise
    trained.safetensors  the head and, if there are adapters, the adapted last layer and the weights of the mean
    encoder/             the frozen encoder and its tokenizer, as transformers saves them

An encoder or tokenizer that has no `save_pretrained` is not in the folder and is given again when the folder is loaded. A
digest of the encoder's parameters is in finetuned.json, so that another encoder is refused.

Privacy: what is saved was released under the claim, which is saved with it, or is public. Noise keys, texts and what the
encoder made of them are in no file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sordino.finetuning.frozen_texts import find_adaptable_layer
from sordino.finetuning.last_layer import AdaptedVectors
from sordino.finetuning.plan import ADAPTED, Phase, Plan
from sordino.ledger.claims import claim_from_json, claim_to_json

if TYPE_CHECKING:
    from sordino.finetuning.finetune_texts import FineTuned

FACTS, TRAINED, ENCODER = "finetuned.json", "trained.safetensors", "encoder"
FORMAT = 1
_CLASS_TYPES = (str, int, float, bool, type(None))
_UNUSED = ("pooler.",)
"""Beginnings of names of parameters that the token vectors do not depend on, and that a saved encoder may lack."""


def save_classifier(tuned: FineTuned, folder: str | Path) -> Path:
    """Writes a fine-tuned classifier to a new or empty folder and returns the folder."""
    import safetensors.torch

    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"folder={str(target)!r}: holds something already; need a new or empty folder")
    classes = [_as_json_value(one) for one in tuned.classes]
    target.mkdir(parents=True, exist_ok=True)
    # The frozen parts first. Those that cannot be saved are given again when the folder is loaded.
    encoder, tokenizer = tuned.model.encoder, tuned.tokenizer
    parts: tuple[Any, Any] = (encoder, tokenizer)
    for part in parts:
        if hasattr(part, "save_pretrained"):
            part.save_pretrained(target / ENCODER)
    # Then what was trained.
    trained = {"head": tuned.model.head, "vectors": tuned.model.vectors}
    tensors = {
        f"{name}.{key}": value.detach().cpu().contiguous().clone()
        for name, part in trained.items()
        if part is not None
        for key, value in part.state_dict().items()
    }
    safetensors.torch.save_file(tensors, target / TRAINED)
    # The facts come last: a folder that has them is complete.
    facts = {
        "format": FORMAT,
        "classes": classes,
        "length": tuned.length,
        "has_encoder": hasattr(encoder, "save_pretrained"),
        "has_tokenizer": hasattr(tokenizer, "save_pretrained"),
        "encoder_digest": _digest_parameters(encoder),
        "plan": asdict(tuned.plan),
        "claim": claim_to_json(tuned.claim),
        "words": str(tuned.claim),
        "signal_to_noise": dict(tuned.signal_to_noise),
        "adapters_lead": tuned.adapters_lead,
    }
    (target / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return target


def load_classifier(folder: str | Path, model: nn.Module | None = None, tokenizer: Any = None) -> FineTuned:
    """Returns the fine-tuned classifier in a folder; an encoder or tokenizer that is not in it must be given."""
    import safetensors.torch

    from sordino.finetuning.finetune_texts import FineTuned, TextClassifier

    source = Path(folder)
    if not (source / FACTS).is_file():
        raise ValueError(f"{source}: has no {FACTS}; need a folder that FineTuned.save or `sordino finetune` wrote")
    facts = json.loads((source / FACTS).read_text(encoding="utf-8"))
    if facts["format"] != FORMAT:
        raise ValueError(f"{source}: is of format {facts['format']}, and this version reads {FORMAT}")
    # The encoder must be the one that the trained parts belong to.
    encoder = _load_part(source, model, "model", "AutoModel", saved=facts["has_encoder"])
    if _digest_parameters(encoder) != facts["encoder_digest"]:
        raise ValueError(f"{source}: the encoder is not the one that was fine-tuned; give that one as model=")
    reader = _load_part(source, tokenizer, "tokenizer", "AutoTokenizer", saved=facts["has_tokenizer"])
    # The trained parts are built empty and filled with what was saved.
    tensors = safetensors.torch.load_file(source / TRAINED)
    head = nn.Linear(tensors["head.weight"].shape[1], len(tensors["head.weight"]))
    head.load_state_dict(_with_prefix(tensors, "head."))
    vectors = None
    if adapted := _with_prefix(tensors, "vectors."):
        layer = find_adaptable_layer(encoder)
        if layer is None:
            raise ValueError(f"{source}: has adapters, and this encoder's last layer cannot have them")
        # The fixed directions A are buffers: `value` keeps them beside its parts for each head, the others inside.
        directions = {
            name: adapted[key]
            for name in ADAPTED
            for key in (f"layer.{name}.down", f"layer.{name}_down")
            if key in adapted
        }
        vectors = AdaptedVectors(layer, head.in_features, directions)
        vectors.load_state_dict(adapted)
    classifier = TextClassifier(encoder, vectors, head).eval()
    return FineTuned(
        classifier,
        reader,
        tuple(facts["classes"]),
        claim_from_json(facts["claim"]),
        _read_plan(facts["plan"]),
        facts["length"],
        facts["signal_to_noise"],
        facts["adapters_lead"],
    )


def _load_part(folder: Path, given: Any, name: str, factory: str, *, saved: bool) -> Any:
    """Returns the encoder or tokenizer that was given, or the one in the folder of a saved classifier."""
    if given is not None:
        return given
    if not saved:
        raise ValueError(f"{folder}: has no {name}, because it could not be saved; give it as {name}=")
    import transformers

    # transformers reports on standard error that it initialises parts which were not saved and are not used, and shows a
    # bar while it loads.
    logging = transformers.utils.logging
    verbosity, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        return getattr(transformers, factory).from_pretrained(folder / ENCODER)
    finally:
        logging.set_verbosity(verbosity)
        if has_bar:
            logging.enable_progress_bar()


def _digest_parameters(encoder: nn.Module) -> str:
    """Returns the SHA-256 by which a saved classifier recognises its encoder: of parameters and buffers by name, without
    those that token vectors do not need.
    """
    digest = hashlib.sha256()
    for name, value in sorted(encoder.state_dict().items()):
        if not name.startswith(_UNUSED):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Returns the tensors whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _as_json_value(name: Any) -> Any:
    """Returns one of a saved classifier's classes as JSON holds it, so that it is the same after loading; raises
    TypeError for other objects.
    """
    value = name.item() if hasattr(name, "item") else name
    if not isinstance(value, _CLASS_TYPES):
        raise TypeError(f"a class of type {type(name).__name__}: texts and numbers can be saved; name classes by those")
    return value


def _read_plan(table: Mapping[str, Any]) -> Plan:
    """Returns the plan that `asdict` made a table of."""
    phases = {name: None if table[name] is None else Phase(**table[name]) for name in ("head", "adapters", "last_head")}
    return Plan(**{**table, **phases})
