"""Puts the defects of devices back, one at a time, and shows that a check on the simulated device fails with each.

    nice -n 15 python -m bench.device_mutations              # all, resumed where it stopped
    python -m bench.device_mutations --only "TF32"           # those whose name has this in it
    python -m bench.device_mutations --again                 # all of them anew

Each defect is one that the library had on devices, or one that a check is meant to find: a piece of text in one file
that is exchanged for another, in a copy of the repository. Then the checks named beside it run there. A defect is *found*
if they fail, and *missed* if they pass. Writes bench/results/device_mutations.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "device_mutations.json"
SECONDS = 600


@dataclass(frozen=True)
class Defect:
    """A defect, as an exchange of text in one file, and the checks that must notice it."""

    name: str
    file: str
    right: str
    wrong: str
    checks: str
    """A file of tests/device, and after a space what its tests are chosen by."""


_SEED_DEVICES = """    for generator in device_generators():
        generator.manual_seed(seed)
"""
_NOTHING_LEFT_OUT = "tuple(generator.get_state() for generator in device_generators())"

DEFECTS = (
    Defect(
        "a forward pass is seeded on the CPU alone: every pass on a device drops the same",
        "sordino/rng/global_generators.py",
        f"{_SEED_DEVICES}\n\nclass Seeded",
        "\n\nclass Seeded",
        "check_training.py by_its_seed",
    ),
    Defect(
        "the runtime checks seed the CPU alone: lot 1 is refused",
        "sordino/rng/global_generators.py",
        f"{_SEED_DEVICES}    np.random.seed",
        "    np.random.seed",
        "check_training.py dropout_trains or generators",
    ),
    Defect(
        "a leaf without a rule is run again with other dropout: its gradient is wrong",
        "sordino/rng/global_generators.py",
        f"            {_NOTHING_LEFT_OUT},\n            np.random",
        "            (),\n            np.random",
        "check_gradients.py leaf",
    ),
    Defect(
        "generators of devices are not put back after a pass",
        "sordino/rng/global_generators.py",
        f"return TorchState(torch.get_rng_state(), {_NOTHING_LEFT_OUT})",
        "return TorchState(torch.get_rng_state(), ())",
        "check_training.py generator",
    ),
    Defect(
        "the second look in float64 mixes devices: rounding by shape voids an honest run",
        "sordino/runtime_checks/double_precision.py",
        "rows = watched.to(lengths.device)",
        "rows = watched.cpu()",
        "check_training.py second_look or rounding",
    ),
    Defect(
        "a model that is moved in the middle of a run is not told from other changes",
        "sordino/ledger/tripwire.py",
        "            if p.device != before:\n",
        "            if False:\n",
        "check_refusals.py in_the_middle",
    ),
    Defect(
        "nor is one for which the move makes new parameter objects",
        "sordino/ledger/tripwire.py",
        "                is_moved = before != now\n",
        "                is_moved = False\n",
        "check_refusals.py in_the_middle",
    ),
    Defect(
        "a replay is allowed where sums have no fixed order",
        "sordino/environment.py",
        "    if not torch.are_deterministic_algorithms_enabled() or",
        "    if False and",
        "check_replays.py",
    ),
    Defect(
        "norms are computed in TF32",
        "sordino/per_sample/formulas/gradient_part.py",
        "    with autocast, FullPrecisionProducts():\n",
        "    with autocast:\n",
        "check_precision.py",
    ),
    Defect(
        "Gram norms are not raised for how libraries add products",
        "sordino/per_sample/formulas/matrix_product.py",
        "    return gram_rounding_factor(dtype) * (1 + math.sqrt(additions))",
        "    return 0.0",
        "check_precision.py long_sums",
    ),
    Defect(
        "cancelled Gram norms are not measured again on a device",
        "sordino/per_sample/formulas/matrix_product.py",
        "torch.where(cancelled, measure_rows(index), raised[index])",
        "raised[index]",
        "check_precision.py more_records_cancel",
    ),
    Defect(
        "noise is copied tensor by tensor, and the host waits",
        "sordino/release/noise.py",
        '    if place.type == "cpu" or any(',
        "    if True or any(",
        "check_costs.py noise",
    ),
    Defect(
        "the host waits for every released gradient",
        "sordino/ledger/tripwire.py",
        "held = _store_sample(p, gradient, owner_reference, may_wait=False)",
        "held = _store_sample(p, gradient, owner_reference)",
        "check_costs.py plain_step",
    ),
    Defect(
        "the host waits to see which Gram norms cancelled",
        "sordino/per_sample/formulas/matrix_product.py",
        "    if squared.is_cpu:\n",
        "    if True:\n",
        "check_costs.py too_large",
    ),
    Defect(
        "a device without float64 gets a bare error",
        "sordino/per_sample/model_devices.py",
        "    if not _has_float64(device):",
        "    if False:",
        "check_refusals.py float64",
    ),
    Defect(
        "a device whose generator cannot be read is trained on",
        "sordino/per_sample/model_devices.py",
        "    if not has_readable_generator(device):",
        "    if False:",
        "check_refusals.py generator",
    ),
    Defect(
        "a model on two devices gets a bare error",
        "sordino/per_sample/model_devices.py",
        "    if len(devices) > 1:",
        "    if False:",
        "check_refusals.py two_devices or frozen",
    ),
    Defect(
        "ranks send tensors of the device over gloo: a bare error after the first backward",
        "sordino/distributed/process_group.py",
        "        return values if values.device.type in self.carried_kinds else values.to(self.device)",
        "        return values",
        "check_ranks.py two_ranks",
    ),
    Defect(
        "Lightning moves its module back to the CPU at the end, and the claim is void",
        "sordino/integrations/lightning.py",
        "        with following_move(self):\n            super().cpu()\n",
        "        super().cpu()\n",
        "check_integrations.py there_and_back",
    ),
    Defect(
        "accelerate's optimizer steps the parameters as they were before the move",
        "sordino/integrations/accelerate.py",
        "    _replace_moved_parameters(optimizer, before, dict(model.named_parameters()))\n",
        "",
        "check_integrations.py accelerate",
    ),
    Defect(
        "a model that a framework moves after draws() is not looked at again",
        "sordino/private.py",
        "        self._refuse_unfit_devices()\n        self._choose_cipher()",
        "        self._choose_cipher()",
        "check_integrations.py unfit",
    ),
    Defect(
        "evaluations do not follow the model",
        "sordino/app/runs/evaluate.py",
        "loss_fn(scores, inputs.to(device), targets.to(device))",
        "loss_fn(scores, inputs, targets)",
        "check_runs.py recipe",
    ),
    Defect(
        "the model is moved after the optimizer was made, or never",
        "sordino/app/runs/problem.py",
        "        model.to(device)  # before the optimizer is made, whose state follows the parameters\n",
        "        pass\n",
        "check_runs.py recipe",
    ),
    Defect(
        "another device does not forbid a replay",
        "sordino/app/runs/settings.py",
        '        "device",\n        "learning_rate",\n',
        '        "learning_rate",\n',
        "check_runs.py elsewhere",
    ),
)


def find_out(defect: Defect) -> dict[str, str]:
    """Returns whether the checks fail with this defect put back, and the first test that did."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "__pycache__", "dist"))
        path = copy / defect.file
        text = path.read_text()
        if text.count(defect.right) != 1:
            return {"result": f"stale: the text is {text.count(defect.right)} times in {defect.file}"}
        path.write_text(text.replace(defect.right, defect.wrong))
        file, _, chosen = defect.checks.partition(" ")
        plugins = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.device.leave_at_once"]
        command = [sys.executable, "-m", "pytest", "-q", "-x", *plugins, f"tests/device/{file}"]
        command += ["-k", chosen] if chosen else []
        env = {**os.environ, "PYTHONPATH": str(copy)}
        try:
            done = subprocess.run(
                command, cwd=copy, env=env, capture_output=True, text=True, check=False, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return {"result": "found", "by": f"the checks did not end within {SECONDS} s"}
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        # 1: tests failed; anything else but 0 is an error that no test foresaw, which is as plain.
        return {"result": "found" if done.returncode == 1 else "missed" if done.returncode == 0 else "stopped"} | (
            {"by": failed[0].split(" - ")[0].removeprefix("FAILED tests/device/")} if failed else {}
        )


def main() -> None:
    """Tries all defects that were not tried and writes the results after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() and not options.again else {}
    for defect in DEFECTS:
        if options.only not in defect.name or found.get(defect.name, {}).get("result") == "found":
            continue
        found[defect.name] = find_out(defect)
        RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        print(defect.name, found[defect.name], flush=True)  # noqa: T201
    missed = [name for name, one in found.items() if one["result"] != "found"]
    print(f"{len(found) - len(missed)} of {len(DEFECTS)} found; not found: {missed}")  # noqa: T201


if __name__ == "__main__":
    main()
