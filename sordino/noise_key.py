"""The noise key of a run, kept apart from everything that is meant to be shared.

A run draws its lots, its noise and the random numbers of its forward passes from three AES keys. Whoever has them can
subtract the noise from what was released and knows which records were drawn. So they are in no state dict, no
checkpoint of a framework and no log. Only a replay, which repeats releases bit by bit, needs them. For that they can be
saved to one file whose name says what it is:

    private.save_secret(folder)       # folder/SECRET-noise-key-do-not-share.json, readable by its owner only

What a state dict must hold of a run's secrets, the positions of the three streams and what a sampler remembers of the
records, is encrypted there under these keys (AES-256-GCM, NIST SP 800-38D). It can be read with the secret file of the
same run, and is noise to everybody else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sordino.rng.keystream import KEY_BYTES
from sordino.rng.streams import CIPHER, Rng

NAME = "SECRET-noise-key-do-not-share.json"
"""The file that holds a run's keys. The name is for people who look through a folder before they publish it."""

_FORMAT = 1
_STREAMS = ("root", "noise", "forward")
_NONCE_BYTES = 12


class WrongKey(ValueError):
    """Raised where the given key is not the one that a state was saved under."""


@dataclass(frozen=True, repr=False)
class NoiseKey:
    """The three keys of a run. Its `repr` shows none of them."""

    root: bytes
    noise: bytes
    forward: bytes

    @staticmethod
    def of_streams(root: Rng, noise: Rng, forward: Rng) -> NoiseKey:
        """Returns the keys of a run's three streams."""
        return NoiseKey(*(bytes.fromhex(stream.state_dict()["key"]) for stream in (root, noise, forward)))

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> NoiseKey:
        """Returns the noise key that `to_table()` wrote.

        Raises:
            ValueError: if the table is of another format or another cipher.

        """
        # Another format or cipher would give another stream from the same bytes.
        if table.get("format") != _FORMAT or table.get("cipher") != CIPHER:
            raise ValueError(
                f"a noise key of format {table.get('format')!r} and cipher {table.get('cipher')!r} was given, and this "
                f"version reads format {_FORMAT} and {CIPHER}.\nLoad the state without replay=: it goes on with a new key."
            )
        # A key that was cut short would decrypt nothing, so its length is checked here.
        keys = [bytes.fromhex(table[name]) for name in _STREAMS]
        if any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"a noise key has three parts of {KEY_BYTES} bytes; this one was cut short")
        return NoiseKey(*keys)

    def to_table(self) -> dict[str, Any]:
        """Returns the keys as JSON. This is the secret itself."""
        named = zip(_STREAMS, (self.root, self.noise, self.forward), strict=True)
        return {"format": _FORMAT, "cipher": CIPHER, **{name: key.hex() for name, key in named}}

    def encrypt(self, private: Mapping[str, Any]) -> str:
        """Returns a JSON-like mapping as text that only this noise key opens again. Equal mappings give equal texts.

        The nonce is a keyed hash of the content, so no two contents share one, and nothing random is needed.
        """
        key, content = self._derive_sealing_key(), json.dumps(private).encode()
        # AES-GCM needs a new nonce for every content; equal contents may share one.
        nonce = hashlib.blake2b(content, key=key, digest_size=_NONCE_BYTES).digest()
        sealed = AESGCM(key).encrypt(nonce, content, None)
        return base64.b85encode(nonce + sealed).decode()

    def decrypt(self, text: str) -> dict[str, Any]:
        """Returns the mapping that `encrypt` turned into text by the same noise key.

        Raises:
            WrongKey: if the text was encrypted under other keys, or was changed.

        """
        # The tag of AES-GCM fails for a wrong key and for a damaged text alike; both are refused.
        try:
            raw = base64.b85decode(text)
            content = AESGCM(self._derive_sealing_key()).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], None)
        except (InvalidTag, ValueError):
            raise WrongKey(
                "this noise key is not the one that the state was saved under.\n"
                "With another key a replay would be a new release that nobody charged.\n"
                "Give the secret file that private.save_secret wrote in the same run, or load the state without replay=."
            ) from None
        return dict(json.loads(content))

    def streams_at(self, counters: Mapping[str, int], noise_cipher: str = CIPHER) -> tuple[Rng, Rng, Rng]:
        """Returns the noise key's streams root, noise and forward at saved positions: for a replay alone.

        The noise has the cipher that the state names: that of devices, if one made it.
        """
        ciphers = {"noise": noise_cipher}
        root, noise, forward = (
            Rng.replay({"cipher": ciphers.get(name, CIPHER), "key": key.hex(), "counter": counters[name]})
            for name, key in zip(_STREAMS, (self.root, self.noise, self.forward), strict=True)
        )
        return root, noise, forward

    def _derive_sealing_key(self) -> bytes:
        """Returns a fourth key, a one-way function of the three, which encrypts what a state holds."""
        all_keys = self.root + self.noise + self.forward
        return hashlib.blake2b(all_keys, digest_size=KEY_BYTES, person=b"sordino state").digest()


def write_secret(folder: str | Path, table: Mapping[str, Any]) -> Path:
    """Writes the secret file of a noise key into a folder and returns its path.

    The file is readable by its owner only, from its first byte on. It is there whole or not at all, also after a crash.
    The folder's `.gitignore` names it, so that it is not committed by accident.
    """
    place = Path(folder)
    # The name is ignored by git before the file exists.
    add_to_gitignore(place, NAME)
    path, partial_path = place / NAME, place / f"{NAME}.part"
    partial_path.unlink(missing_ok=True)
    # Create the file with its final permissions, so that nobody else can read it at any moment.
    descriptor = os.open(partial_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(json.dumps(dict(table), indent=1).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    # Renaming is atomic: after a crash there is the whole file or none.
    os.replace(partial_path, path)
    _flush_folder(place)
    return path


def read_secret(place: str | Path) -> dict[str, Any]:
    """Returns the noise key's table that `write_secret` wrote, given the file or the folder that holds it.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file holds something else.

    """
    path = Path(place)
    path = path / NAME if path.is_dir() else path
    # A file that was cut short is no key; it is never completed by guessing.
    try:
        table = json.loads(path.read_bytes())
    except ValueError:
        table = None
    if not isinstance(table, dict):
        raise ValueError(f"{path}: is no noise key, or was cut short")
    return table


def erase_secret(folder: str | Path) -> bool:
    """Overwrites and removes the secret file of a noise key in a folder, and what a crash left of one; False where
    there was none.

    File systems that keep old blocks, and backups, may hold copies. Nothing in this process can reach those.
    """
    erased_any = False
    for path in (Path(folder) / NAME, Path(folder) / f"{NAME}.part"):
        if not path.exists():
            continue
        erased_any = True
        # Overwrite the key before the name is removed, so that it is not left in a free block.
        with open(path, "r+b") as file:
            file.write(bytes(path.stat().st_size))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
    if erased_any:
        _flush_folder(Path(folder))
    return erased_any


def add_to_gitignore(folder: Path, *names: str) -> None:
    """Adds names, such as that of the noise key's file, to the `.gitignore` of a folder, where they are not in it yet."""
    path = folder / ".gitignore"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    missing = [name for name in names if name not in lines]
    if missing:
        path.write_text("\n".join([*lines, *missing]) + "\n", encoding="utf-8")


def _flush_folder(folder: Path) -> None:
    """Makes names in a folder, such as that of the noise key's file, reach the disk. Windows has no such call."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
