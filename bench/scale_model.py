"""Predicts the time of a lot on larger machines, with messages, noise, imbalance and failures.

    python -m bench.scale_model            # result in bench/results/scale_model.json; measures nothing itself

    messages    latency × steps + bytes / bandwidth, of rings; bytes as a fake group counts them (test_fake_group.py)
    records     6 · parameters · tokens operations each, plain; × 3.25/2.75 private (docs/engine_measurements.md)
    imbalance   the fullest rank's share of a Poisson lot over the mean share
    noise       of a rank's own coordinates, on one core
    failures    a device fails once in M hours; a checkpoint of δ seconds every τ = √(2 δ M / W) (Young 1974) costs δ/τ of
                the time, and each failure half an interval and a restart

    Trainer     every device holds the model, of which all parameters or adapters are trained; a rank makes the noise of its
                own coordinates on a core and copies it to the device; lots are tested at the rates of
                runtime_checks/test_runner.py; one rank writes each checkpoint while the others wait

Latency and bandwidth of gloo are fitted to what bench.scale measured of collectives on two ranks, and compared with three;
the processor's time of a lot is fitted on one and two, and compared with three. For larger machines both are assumed.

A failure costs time and no privacy, since the steps after a checkpoint are replayed bit by bit. Were they not, each would
be charged and lost: `steps_lost_a_day_without_replay`.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.scale import RESULT as MEASURED
from bench.scale import imbalance

RESULT = Path(__file__).parent / "results" / "scale_model.json"
SIZES = (1 << 10, 1 << 16, 1 << 20)
"""Coordinates of the collectives that bench.scale times."""
PRIVATE = 3.25 / 2.75
NOISE_SECONDS = 1.2e-9
"""A value, on one core (docs/engine_measurements.md)."""
DAY = 86400.0


@dataclass(frozen=True)
class Machine:
    """What is assumed of one device, its network and its storage."""

    operations: float = 2e14  # a second, sustained
    bandwidth: float = 5e10  # bytes a second between devices
    latency: float = 5e-6
    storage: float = 1.25e8  # bytes a second for each device
    hours_between_failures: float = 5e4  # of one device: 419 in 54 days of 16,384 (Grattafiori et al. 2024)
    restart: float = 300.0  # seconds


@dataclass(frozen=True)
class Training:
    """What is trained."""

    records: float = 1e9
    parameters: float = 1e11
    lot: int = 32768
    tokens: int = 1024  # of a record
    physical_batch: int = 32
    layers: int = 100  # modules that fully_shard is applied to


def bytes_of_lot(parameters: float, chunks: int, *, layered: bool) -> dict[str, float]:
    """Returns the bytes that collectives gather and scatter in a lot, without the agreement of ranks."""
    if not layered:
        return {"gather": 4 * parameters, "scatter": 8 * parameters}
    return {"gather": 2 * 4 * parameters * chunks, "scatter": 8 * parameters * chunks}


def memory(training: Training, ranks: int, *, layered: bool) -> float:
    """Returns the bytes of one device without activations: parameters, optimizer state, gradient and extras."""
    own, layer = training.parameters / ranks, training.parameters / training.layers
    return (16 + 16) * own + (4 + 32) * layer if layered else 16 * own + 32 * training.parameters


def predict_lot(ranks: int, training: Training, machine: Machine, *, layered: bool) -> dict[str, float]:
    """Returns the seconds of a lot on so many devices, and what failures add."""
    each = training.lot / ranks
    fullest = imbalance(ranks, max(1, round(each)))["one_draw"]
    chunks = math.ceil(fullest * each / training.physical_batch)
    ring, sent = (ranks - 1) / ranks, bytes_of_lot(training.parameters, chunks, layered=layered)
    messages = (3 * training.layers * chunks if layered else 2 * training.layers) * (ranks - 1)
    rounds = (3 * training.layers * chunks if layered else 2) * 2 * math.ceil(math.log2(ranks))
    found = {
        "compute_s": PRIVATE * fullest * 6 * training.parameters * training.tokens * each / machine.operations,
        "messages_s": ring * sum(sent.values()) / machine.bandwidth + (messages + rounds) * machine.latency,
        "noise_s": training.parameters / ranks * NOISE_SECONDS,
        "imbalance": fullest,
    }
    found["lot_s"] = found["compute_s"] + found["messages_s"] + found["noise_s"]
    return {**found, **failures(ranks, found["lot_s"], training, machine)}


def failures(ranks: int, lot: float, training: Training, machine: Machine) -> dict[str, float]:
    """Returns what checkpoints, restarts and replays add, and the steps lost a day without replay."""
    between = machine.hours_between_failures * 3600 / ranks
    write = 12 * training.parameters / ranks / machine.storage  # parameters and AdamW's two moments
    interval = math.sqrt(2 * write * between)
    share = write / interval + (interval / 2 + machine.restart) / between
    return {
        "hours_between_failures": between / 3600,
        "checkpoint_s": write,
        "interval_s": interval,
        "failures_share": share,
        "steps_lost_a_day_without_replay": DAY / between * interval / 2 / lot,
    }


@dataclass(frozen=True)
class TrainerRun:
    """What Hugging Face's Trainer fine-tunes with the model whole on every device."""

    parameters: float = 7e9
    trained: float = 7e9  # of them; of LoRA adapters some ten millions
    lot: int = 4096
    tokens: int = 512
    lots: int = 1000
    save_steps: int = 100
    bytes_of_parameter: float = 2.0  # bfloat16
    passes_of_test: int = 12  # forward and backward passes that a test of a lot takes
    records_of_pass: int = 8
    host_bandwidth: float = 1e10  # bytes a second between a core and its device
    write_bandwidth: float = 1e9  # bytes a second of the one rank that writes


def count_tested_lots(lots: int) -> float:
    """Returns how many lots are tested on average: lot k with chance max(1/100, 2/k), and at most once.

    >>> round(count_tested_lots(1000), 1)
    18.8
    """
    return sum(min(1.0, max(0.01, 2.0 / k)) for k in range(1, lots + 1))


def predict_trainer(ranks: int, run: TrainerRun, machine: Machine) -> dict[str, float]:
    """Returns the mean seconds of a lot in the Trainer on so many devices, by what takes them, over a whole run.

    A record costs 6 operations for each trained parameter and token and 4 for each frozen one, whose gradient is not
    computed. Tests run on every rank at once, each on records of its own. Checkpoints hold parameters that are trained and
    AdamW's two moments, in float32.
    """
    each = run.lot / ranks
    fullest = imbalance(ranks, max(1, round(each)))["one_draw"]
    operations = (6 * run.trained + 4 * (run.parameters - run.trained)) * run.tokens
    record = PRIVATE * operations / machine.operations
    ring = (ranks - 1) / ranks
    found = {
        "compute_s": fullest * each * record,
        "messages_s": ring * 12 * run.trained / machine.bandwidth + 4 * (ranks - 1) * machine.latency,
        "noise_s": run.trained / ranks * (NOISE_SECONDS + 4 / run.host_bandwidth),
        "checks_s": count_tested_lots(run.lots) / run.lots * run.passes_of_test * run.records_of_pass * record,
        "checkpoints_s": 12 * run.trained / run.write_bandwidth / run.save_steps,
    }
    plain = found["compute_s"] / PRIVATE + ring * 8 * run.trained / machine.bandwidth + found["checkpoints_s"]
    found["lot_s"] = sum(found.values())
    found["over_plain"] = found["lot_s"] / plain
    found["gigabytes"] = (run.bytes_of_parameter * run.parameters + (4 + 8 + 8 + 4 + 4) * run.trained) / 1e9
    return found


def fit_model(measured: list[dict[str, Any]]) -> dict[str, Any]:
    """Fits gloo's latency and bandwidth and the processor's time, and returns how far three ranks are from that."""
    by_ranks = {each["ranks"]: each for each in measured}
    found: dict[str, Any] = {}
    for name, width in (("reduce_scatter", 8), ("all_gather", 4)):
        sent = np.array([width * n / 2 for n in SIZES])
        seconds = np.array(by_ranks[2]["collectives_ms"][name]) / 1e3
        line = (
            np.stack([np.ones_like(sent), sent], 1) / seconds[:, None]
        )  # relative errors: sizes differ a thousandfold
        latency, rate = np.maximum(np.linalg.lstsq(line, np.ones_like(sent), rcond=None)[0], 0)
        at_three = [2 * latency + rate * width * n * 2 / 3 for n in SIZES]
        found[name] = {
            "latency_ms": round(1e3 * latency, 3),
            "megabytes_a_second": round(1e-6 / rate, 1) if rate else None,
            "three_ranks_predicted_ms": [round(1e3 * t, 2) for t in at_three],
            "three_ranks_measured_ms": by_ranks[3]["collectives_ms"][name],
        }
    one, two, three = (by_ranks[size]["private_cpu_ms"] for size in (1, 2, 3))
    shared = 2 * (one - two)  # what is divided among ranks; the rest is every rank's
    found["private_cpu_ms"] = {
        "divided": round(shared, 2),
        "of_every_rank": round(one - shared, 2),
        "three_ranks_predicted": round(one - shared + shared / 3, 2),
        "three_ranks_measured": three,
    }
    return found


def main() -> None:
    """Fits, predicts and writes the file."""
    training, machine = Training(), Machine()
    kinds = {"made whole": False, "layer by layer": True}
    result = {
        "assumed": {"machine": asdict(machine), "training": asdict(training)},
        "fitted": fit_model(json.loads(MEASURED.read_text())["measured"]),
        "predicted": {
            f"{ranks} devices, {kind}": {
                **{k: float(f"{v:.4g}") for k, v in predict_lot(ranks, training, machine, layered=layered).items()},
                "gigabytes": round(memory(training, ranks, layered=layered) / 1e9, 1),
            }
            for ranks in (8, 64, 512, 4096)
            for kind, layered in kinds.items()
        },
        "trainer": {
            "assumed": asdict(TrainerRun()),
            **{
                f"{ranks} devices, {kind}": {
                    name: float(f"{value:.4g}") for name, value in predict_trainer(ranks, run, machine).items()
                }
                for ranks in (1, 8, 64, 512)
                for kind, run in (("all parameters", TrainerRun()), ("adapters", TrainerRun(trained=4e7)))
            },
        },
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()
