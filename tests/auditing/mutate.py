"""Puts each mistake into a copy of the package, and asks which level notices: a refusal, the selftest, or a replay.

    python -m tests.auditing.mutate [NAME …]       some, or those not tried yet; writes bench/results/mutations.json

A replay is of a run made by the copy, audited by the package as it is: what an outside auditor does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import sordino
from tests.auditing.mutations import MUTATIONS, SURVIVED, Mutation

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "mutations.json"

TRY = """
import json, sys, torch
import sordino as sd
from sordino.auditing import selftest
from tests.auditing.settings import pieces, records
layers = sd.NoisySum.per_layer({"0.": (0.5, 2.0), "3.": (0.2, 1.5)})
tried = [pieces(), pieces(layers, sd.Shuffle(20))]
said = {"level": None, "checks": []}
try:
    for one in tried:
        verdict = selftest(one, records())
        if not verdict.passed:
            said = {"level": "selftest", "checks": sorted({f.check.split(",")[0] for f in verdict.failures})}
            break
except (ImportError, NameError):
    raise  # a package that does not run was not tried
except Exception as error:
    said = {"level": "refused", "checks": [f"{type(error).__name__}: {str(error)[:90]}"]}
print(json.dumps(said))
"""
GIVEN = "steps=20, records=1000, noise_multiplier=1.0, keep_key=True"
TRAIN = f"import sordino, sys; sordino.fit('spiral', {GIVEN}, out=sys.argv[1])"
AUDIT = "import sys; from sordino.app.audits.replay_audit import replay; print(replay(sys.argv[1], 8).wrong[:1] or '')"


def mutated(mutation: Mutation | None, folder: Path) -> None:
    """A copy of the package, with the mistake in it."""
    shutil.copytree(Path(sordino.__file__).parent, folder / "sordino", ignore=shutil.ignore_patterns("__pycache__"))
    if mutation is None:
        return
    path = folder / "sordino" / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        raise ValueError(f"{mutation.name}: {mutation.file} has it {text.count(mutation.old)} times; need once")
    path.write_text(text.replace(mutation.old, mutation.new))


def noticed(mutation: Mutation | None, *, also_replay: bool = False) -> dict[str, object]:
    """Which level notices it, and by which checks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mutated(mutation, folder)
        done = _python(TRY, folder)
        if done.returncode:  # it is not even tried: that is no notice
            raise RuntimeError(f"{mutation}: {done.stderr.strip().splitlines()[-1]}")
        said: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        said["replay"] = None
        if said["level"] is None or also_replay:
            trained = _python(TRAIN, folder, str(folder / "run"))
            if trained.returncode:
                said["replay"] = trained.stderr.strip().splitlines()[-1][:120]
            else:
                audit = _python(AUDIT, ROOT, str(folder / "run"))
                last = (audit.stderr if audit.returncode else audit.stdout).strip().splitlines()
                said["replay"] = last[-1].replace(f"{folder}{os.sep}", "")[:160] if last and last[-1] else None
            if said["level"] is None and said["replay"]:
                said["level"] = "replay"
        return said


def _python(code: str, package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=package,
        check=False,
    )


def main(names: list[str]) -> None:
    """Those named, or all that are not in the results yet; the survivors and the package as it is are replayed too."""
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for mutation in (None, *MUTATIONS):
        name = "none" if mutation is None else mutation.name
        if name in names or (not names and name not in found):
            found[name] = noticed(mutation, also_replay=name == "none" or name in SURVIVED)
            print(name, "→", found[name]["level"], found[name]["checks"], found[name]["replay"], flush=True)  # noqa: T201
            RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
