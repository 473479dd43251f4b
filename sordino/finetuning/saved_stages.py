"""The stages of a fine-tuning on the disk, so that a run that was killed goes on and ends as it would have ended.

    begun.json            the plan, the environment that decides every bit, and a digest of the data
    SECRET-noise-key-…    the key of that digest
    head/SECRET-…         the noise key of a stage, written before its first lot
    head/begun.json       the state of the stage before its first lot; there is no key in it
    head/done.pt          its parameters, its figures and the ledger, once it has ended
    adapters/, choice/, last head/

A stage that has ended is loaded. A stage that had begun is run again from its first lot, with its own noise key.

Privacy: a stage that is run again has the same parameters, data, lots, noise and environment as the first time, so it comes
to the same bits: it is one release, and is charged once. What is told of a stage, such as the lead of the adapters, is on
the disk before it is told. Where a bit could differ the run is refused. The keys are erased when the last stage has ended.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sordino.environment import current_environment, describe_difference
from sordino.file_lock import Locked, lock_file
from sordino.finetuning.plan import Plan
from sordino.ledger.ledger import Ledger
from sordino.noise_key import erase_secret, read_secret, write_secret
from sordino.private import Private
from sordino.refusal import Refusal
from sordino.replay import Replay

BEGUN, DONE = "begun.json", "done.pt"
STAGES = ("head", "adapters", "choice", "last head")
"""The names of all stages, in order; a plan without adapters has the first alone."""
_LOCK = "lock"
_WHY_THE_SAME = "the stage begins from the same parameters, data, key and environment"


class SavedStages:
    """The stages of one fine-tuning in a folder that one process holds at a time.

    Args:
        folder: a new or empty folder, or one of a run that was stopped.
        plan: of the run; it must be that of the stopped one.
        data: all tensors that the training reads: they must be those of the stopped run.
        ledger: gets what the stages that have ended were charged.

    Raises:
        ValueError: if another process holds the folder, or if it belongs to another plan or other data.
        Refusal: if stages that had begun would not come to the same bits here.

    """

    def __init__(self, folder: str | Path, plan: Plan, data: Iterable[Tensor], ledger: Ledger) -> None:
        self.folder, self._ledger = Path(folder), ledger
        self.folder.mkdir(parents=True, exist_ok=True)
        # Two processes would use one noise key at the same time.
        self._lock = open(self.folder / _LOCK, "ab")  # noqa: SIM115 (held for the life of the run)
        try:
            lock_file(self._lock, wait=False)
        except Locked:
            self._lock.close()
            raise ValueError(f"{self.folder}: another process is training this run; wait for it") from None
        try:
            self._begin_or_check(plan, data)
        except BaseException:
            self._lock.close()
            raise
        # The ledger of the last stage that has ended holds the charges of those before it too.
        ended = [name for name in STAGES if self.is_done(name)]
        if ended:
            ledger.load_state_dict(self._load_stage(ended[-1])["ledger"])

    def is_done(self, stage: str) -> bool:
        """Returns whether a stage has ended."""
        return (self.folder / stage / DONE).is_file()

    def begin(self, stage: str, private: Private) -> None:
        """Prepares a stage before its first lot: with its saved noise key if it had begun, else with a new key that is
        saved first.
        """
        place = self.folder / stage
        if (place / BEGUN).is_file():
            state = json.loads((place / BEGUN).read_text(encoding="utf-8"))
            private.continue_logged_run(state, replay=Replay(_WHY_THE_SAME, entered=True, secret=place))
            return
        # The key first: a stage whose state is there can be run again.
        place.mkdir(exist_ok=True)
        private.save_secret(place)
        _write_file(place / BEGUN, json.dumps(private.state_dict()).encode())

    def end(self, stage: str, module: nn.Module, figures: Mapping[str, float | None]) -> None:
        """Saves what a stage came to. Its run makes its last tests first, so that the ledger is complete."""
        self._ledger.watchers.run_checks(self._ledger.void)
        self._ledger.close_all()
        content = {"parameters": module.state_dict(), "figures": dict(figures), "ledger": self._ledger.state_dict()}
        buffer = io.BytesIO()
        torch.save(content, buffer)
        _write_file(self.folder / stage / DONE, buffer.getvalue())

    def load(self, stage: str, module: nn.Module) -> dict[str, float | None]:
        """Loads the parameters of a stage that has ended into a module, and returns its figures."""
        saved = self._load_stage(stage)
        module.load_state_dict(saved["parameters"])
        return dict(saved["figures"])

    def erase_keys(self) -> None:
        """Erases all keys: the last stage has ended, and nothing is run again."""
        for place in (*(self.folder / stage for stage in STAGES), self.folder):
            if place.is_dir():
                erase_secret(place)

    def remove(self) -> None:
        """Erases the keys and removes the folder, once its result is kept elsewhere."""
        self.erase_keys()
        self._lock.close()
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Lets other processes have the folder."""
        self._lock.close()

    def _load_stage(self, stage: str) -> dict[str, Any]:
        loaded: dict[str, Any] = torch.load(self.folder / stage / DONE, weights_only=True)
        return loaded

    def _begin_or_check(self, plan: Plan, data: Iterable[Tensor]) -> None:
        """Saves what a new run's bits depend on, or compares what the saved stages depend on with what holds here."""
        path = self.folder / BEGUN
        now = {"plan": asdict(plan), "environment": current_environment()}
        # A run that was killed before its first stage has released nothing, and begins anew.
        if not path.is_file() or not any((self.folder / stage / BEGUN).is_file() for stage in STAGES):
            key = secrets.token_bytes(32)
            write_secret(self.folder, {"data_key": key.hex()})
            _write_file(path, json.dumps({**now, "data": _digest_tensors(key, data)}).encode())
            return
        begun = json.loads(path.read_text(encoding="utf-8"))
        # JSON has lists for tuples, so both sides are compared as JSON.
        if begun["plan"] != json.loads(json.dumps(now["plan"])):
            raise ValueError(f"{self.folder}: a run with another plan was begun here; give it a folder of its own")
        # Keys are erased at the end: then every stage has ended, and nothing is drawn or released any more.
        try:
            key = bytes.fromhex(read_secret(self.folder)["data_key"])
        except FileNotFoundError:
            if all(self.is_done(stage) for stage in STAGES if (self.folder / stage).is_dir()):
                return
            raise self._refuse("its keys are gone") from None
        if not hmac.compare_digest(begun["data"], _digest_tensors(key, data)):
            raise self._refuse("its texts, classes or encoder are not those that it began with")
        difference = describe_difference(begun["environment"], json.loads(json.dumps(now["environment"])))
        if difference:
            raise self._refuse(difference)

    def _refuse(self, found: str) -> Refusal:
        """Returns the refusal to go on from saved stages, because the run would not come to the same bits."""
        return Refusal(
            f"{self.folder}: this run cannot go on: {found}.\n"
            "Its noise would be added to other sums, and the difference of two sums would be bare.\n"
            "Restore what it began with, or begin anew in another folder. The stopped run then counts beside the new one, "
            "with the epsilon that it aimed at."
        )


def _digest_tensors(key: bytes, tensors: Iterable[Tensor]) -> str:
    """Returns a keyed digest of the tensors that saved stages depend on: whoever lacks the key cannot try records on
    it.
    """
    digest = hashlib.blake2b(key=key, digest_size=32)
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _write_file(path: Path, content: bytes) -> None:
    """Writes a file of the saved stages that is there whole or not at all, also after a crash; only its owner can read
    it.
    """
    partial_path = path.with_name(f"{path.name}.part")
    partial_path.unlink(missing_ok=True)
    descriptor = os.open(partial_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial_path, path)
