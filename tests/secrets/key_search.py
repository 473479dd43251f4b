"""Searches files for the keys of random streams, in every form in which a program is likely to write 32 bytes."""

from __future__ import annotations

import base64
import gzip
import io
import pickle
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from sordino.rng.global_generators import Seeded
from sordino.rng.streams import Rng

PREFIX = 8
# A dry run and a price take their draws from this stream. It is a constant of the source code and no secret, and a
# row of zeros in a file is no leak.
PUBLIC_KEY = bytes(32)


class Watched:
    """Every key of a stream, and every seed of a forward pass, that this process makes while it is watched."""

    def __init__(self, monkeypatch) -> None:
        self.keys: set[bytes] = set()
        make, seed = Rng.__init__, Seeded.__init__

        def made(stream, key, *more):
            if bytes(key) != PUBLIC_KEY:
                self.keys.add(bytes(key))
            make(stream, key, *more)

        def seeded(one, number):
            self.keys.add(int(number).to_bytes(8, "little", signed=number < 0))
            seed(one, number)

        monkeypatch.setattr(Rng, "__init__", made)
        monkeypatch.setattr(Seeded, "__init__", seeded)


def forms(key: bytes) -> dict[str, bytes]:
    """The bytes of a key as programs write them."""
    found = {
        "raw": key,
        "reversed": key[::-1],
        "hex": key.hex().encode(),
        "HEX": key.hex().upper().encode(),
        "repr": repr(key)[2:-1].encode(),
        "text": key.decode("latin-1").encode(),  # as old pickles hold bytes
        "base85": base64.b85encode(key),
        "whole number": str(int.from_bytes(key, "big")).encode(),
        "whole number, little-endian": str(int.from_bytes(key, "little")).encode(),
        "pickled list": pickle.dumps(list(key), protocol=2).split(b"(", 1)[1].rsplit(b"e", 1)[0],
    }
    # Of base64, what stays the same wherever the key begins in a group of three bytes.
    for shift in range(3):
        text = base64.b64encode(bytes(shift) + key)
        inner = text[4 if shift else 0 : -4]
        found[f"base64, shift {shift}"] = inner
        found[f"base64 for addresses, shift {shift}"] = inner.translate(bytes.maketrans(b"+/", b"-_"))
    for separator in (", ", ",", " ", "\n"):
        for name, numbers in _as_numbers(key):
            found[f"{name} with {separator!r}"] = separator.join(map(str, numbers)).encode()
    return {name: form for name, form in found.items() if len(form) >= PREFIX}


def _as_numbers(key: bytes) -> Iterator[tuple[str, list[int]]]:
    yield "bytes", list(key)
    yield "signed bytes", np.frombuffer(key, np.int8).tolist()
    for kind in ("<u4", ">u4", "<i4", "<u8", ">u8", "<i8"):
        numbers = np.frombuffer(key, kind).tolist()
        if len(numbers) > 1:
            yield kind, numbers


def contents(path: Path) -> Iterator[bytes]:
    """A file's bytes, and what is in them where it is an archive or compressed."""
    raw = path.read_bytes()
    yield raw
    if zipfile.is_zipfile(io.BytesIO(raw)):
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            yield from (archive.read(name) for name in archive.namelist())
    for unpack in (gzip.decompress, zlib.decompress):
        try:
            yield unpack(raw)
        except (OSError, EOFError, zlib.error):
            continue


def holding(folder: Path, keys: Iterable[bytes]) -> dict[str, set[str]]:
    """Which files under a folder hold a key, and in which forms."""
    wanted: dict[int, list[tuple[str, bytes]]] = {}
    for key in keys:
        for name, form in forms(key).items():
            start = int.from_bytes(form[:PREFIX], "little")
            wanted.setdefault(start, []).append((name, form))
    starts = np.array(sorted(wanted), dtype=np.uint64)
    found: dict[str, set[str]] = {}
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        for raw in contents(path):
            for at in _places(raw, starts):
                for name, form in wanted[int.from_bytes(raw[at : at + PREFIX], "little")]:
                    if raw[at : at + len(form)] == form:
                        found.setdefault(str(path.relative_to(folder)), set()).add(name)
    return found


def _places(raw: bytes, starts: np.ndarray) -> list[int]:
    """Where eight bytes of `raw` are among the beginnings that are looked for."""
    places: list[int] = []
    for shift in range(PREFIX):
        usable = (len(raw) - shift) // PREFIX * PREFIX
        if usable > 0:
            windows = np.frombuffer(raw, "<u8", usable // PREFIX, shift)
            places += [shift + PREFIX * int(i) for i in np.flatnonzero(np.isin(windows, starts))]
    return places


def written_forms(key: bytes) -> dict[str, bytes]:
    """Files as a program might write them, each with the key inside: what the search must find."""
    import json

    file = io.BytesIO()
    torch.save({"key": key, "more": torch.zeros(3)}, file)
    return {
        "raw": b"head" + key + b"tail",
        "hex": json.dumps({"key": key.hex()}).encode(),
        "base64": json.dumps({"a": 1, "key": base64.b64encode(b"x" + key).decode()}).encode(),
        "list": json.dumps({"key": list(key)}).encode(),
        "indented": json.dumps({"key": list(key)}, indent=0).replace(",\n", ", ").encode(),
        "words": json.dumps(np.frombuffer(key, "<u8").tolist()).encode(),
        "pickle": pickle.dumps({"key": key}),
        "pickled list": pickle.dumps([list(key)], protocol=2),
        "tensor": pickle.dumps(np.frombuffer(key, np.uint8)),
        "torch": file.getvalue(),
        "gzip": gzip.compress(b"head" + key),
        "repr": repr({"key": key}).encode(),
    }
