# ruff: noqa: E501
"""Wrong arguments to every public name end in one clear line, not in an error from deep inside.

Each row of `VALID` is a call that works. The tests replace its arguments, one after the other, by values of other types
and out of range, leave them out, and add a word that is not known. A call may succeed, because some of these values are
right for some arguments. If it fails, the error must be a TypeError, a ValueError or one of this library's own, it must
be raised by this library's code, and its message must not be one of torch's or numpy's.
"""

from __future__ import annotations

import inspect
import math
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd

PACKAGE = str(Path(sd.__file__).parent)
ALLOWED = (TypeError, ValueError, sd.Refusal, KeyError, FileNotFoundError, OverflowError, RuntimeError)
DEEP = re.compile(
    r"object has no attribute|object is not (callable|iterable|subscriptable)|unsupported operand|not supported between"
    r"|mat1 and mat2|has no len\(\)|must be real number|cannot unpack|only integer|indices must be"
)
NAN = float("nan")


def wrong_values() -> list[Any]:
    """Returns values of many kinds; each is wrong for nearly every argument."""
    return [
        None, "abc", "", b"x", True, -1, 0, 1.5, -2.5, 10**400, NAN, math.inf, -math.inf, 3 + 4j, [], [1, "a"], {}, {"a": None}, (), (1, 2),
        object(), object, len, lambda: 0, torch.zeros(2), torch.zeros(0), np.zeros(3), np.float64(NAN), nn.Linear(1, 1),
        sd.Flat(1.0), sd.Gaussian(1.0), sd.Poisson(0.1), sd.events.Gaussian(1.0), Path("nowhere"), {1, 2}, iter(()),
    ]  # fmt: skip


def losses(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Returns one loss per record."""
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def dataset() -> TensorDataset:
    """Returns a small dataset of two classes."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(20, 3, generator=generator), torch.randint(0, 2, (20,), generator=generator))


def private() -> sd.Private:
    """Returns a model that is ready to be trained privately."""
    return sd.Private(nn.Linear(3, 2), losses, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))


def draws(**arguments: Any) -> Any:
    """Calls `Private.draws` with the arguments of a run of two steps, some of them replaced."""
    drawn = private().draws(**{"dataset": dataset(), "sampler": sd.Poisson(0.5), "steps": 2, **arguments})
    return next(iter(drawn), None)


def claim(**arguments: Any) -> Any:
    """Calls `Private.claim` on a model that was not trained."""
    return private().claim(**arguments)


def ledger_claim(**arguments: Any) -> Any:
    """Calls `Ledger.claim` on an empty ledger."""
    return sd.Ledger().claim(**arguments)


def accountant(kind: type, method: str) -> Callable[..., Any]:
    """Returns a function that calls a method of a new accountant."""
    return lambda **arguments: getattr(kind(), method)(**arguments)


FLAT, GAUSSIAN, POISSON = sd.Flat(1.0), sd.Gaussian(1.0), sd.Poisson(0.1)
EVENT = sd.events.Poisson(0.1, sd.events.Gaussian(1.0))
CONSTANT = sd.schedules.Constant(1.0)
SUM = sd.NoisySum(FLAT, GAUSSIAN)

VALID: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "AdaptiveLayerwise": (sd.AdaptiveLayerwise, {"bounds": [1.0, 1.0], "quantile": 0.5, "count_noise": 5.0}),
    "AdaptiveQuantile": (sd.AdaptiveQuantile, {"bound": 1.0, "quantile": 0.5, "count_noise": 5.0}),
    "Automatic": (sd.Automatic, {"bound": 1.0, "gamma": 0.01}),
    "BallsInBins": (sd.BallsInBins, {"bins": 4}),
    "Band": (sd.Band, {"bottom": 0.5, "top": 1.0, "inside": 0.9, "outside": 0.1}),
    "Banded": (sd.Banded, {"bands": 4, "coefficients": ()}),
    "BandPass": (sd.BandPass, {"bound": 1.0, "threshold": 2.0}),
    "BatchStatistic": (sd.BatchStatistic, {"name": "median", "cap": 1.0}),
    "Buffered": (sd.Buffered, {"decays": (0.9, 0.5), "weights": (0.2, 0.1)}),
    "Correlated": (sd.Correlated, {"multiplier": 3.0, "strategy": sd.Banded(4)}),
    "CyclicPoisson": (sd.CyclicPoisson, {"rate": 0.1, "groups": 4}),
    "FixedOrder": (sd.FixedOrder, {"batch_size": 4}),
    "InCheckpoint": (sd.InCheckpoint, {"private": private(), "replay": None}),
    "InverseBanded": (sd.InverseBanded, {"bands": 4}),
    "TruncatedPoisson": (sd.TruncatedPoisson, {"rate": 0.1, "max_batch": 4}),
    "Workload": (sd.Workload, {"steps": 10, "momentum": 0.9, "weight_decay": 0.0, "learning_rates": ()}),
    "ByCoin": (sd.ByCoin, {"count": 3}),
    "ByLength": (sd.ByLength, {"rate": sd.Band(0.5, 1.0, 0.9), "most": 0.9, "refresh": 1}),
    "ByPosition": (sd.ByPosition, {"size": 3}),
    "FixedSize": (sd.FixedSize, {"batch_size": 4}),
    "Flat": (sd.Flat, {"bound": 1.0}),
    "FlatL1": (sd.FlatL1, {"bound": 1.0, "dimension": 8}),
    "Gaussian": (sd.Gaussian, {"multiplier": 1.0}),
    "Global": (sd.Global, {"bound": 1.0, "threshold": 2.0}),
    "GlobalAdapt": (sd.GlobalAdapt, {"bound": 1.0, "threshold": 2.0}),
    "GlobalLayerwise": (sd.GlobalLayerwise, {"bounds": [1.0], "thresholds": [2.0]}),
    "L1Sum": (sd.L1Sum, {"clipping": FLAT, "noise": sd.Laplace(1.0)}),
    "L2": (sd.L2, {"strength": 0.1}),
    "Laplace": (sd.Laplace, {"multiplier": 1.0}),
    "Layerwise": (sd.Layerwise, {"bounds": [1.0, 1.0]}),
    "Log": (sd.Log, {"write": print, "every": 10}),
    "Microbatches": (sd.Microbatches, {"clipping": FLAT, "noise": GAUSSIAN, "grouping": sd.ByCoin(3)}),
    "NoGuarantee": (sd.NoGuarantee, {"reason": "none was asked for"}),
    "NoisyLookahead": (sd.NoisyLookahead, {"clipping": FLAT, "noise": GAUSSIAN, "learning_rate": 0.1, "rho": 2.0, "rounds": 1}),
    "NoisySum": (sd.NoisySum, {"clipping": FLAT, "noise": GAUSSIAN}),
    "Normalised": (sd.Normalised, {"bound": 1.0}),
    "OptimisticLookahead": (sd.OptimisticLookahead, {"clipping": FLAT, "noise": GAUSSIAN, "learning_rate": 0.1, "rho": 1.0}),
    "PSAC": (sd.PSAC, {"bound": 1.0, "gamma": 0.01}),
    "Poisson": (sd.Poisson, {"rate": 0.1}),
    "Private": (
        lambda **a: sd.Private(**{"model": nn.Linear(3, 2), **a}),
        {"model": nn.Linear(3, 2), "loss_fn": losses, "query": SUM, "penalty": None, "backend": None, "seed": None,
         "accountant": None, "ledger": None, "mesh": None, "isolate": False},
    ),
    "Private.draws": (
        draws,
        {"dataset": dataset(), "sampler": sd.Poisson(0.5), "steps": 2, "expected_batch": None, "physical_batch": None,
         "workers": 0, "collate": None, "unit": None},
    ),
    "Private.claim": (claim, {"delta": 1e-5, "accountant": None}),
    "Private.backward": (lambda **a: private().backward(**a), {"lot": (torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))}),
    "Private.load_state_dict": (lambda **a: private().load_state_dict(**a), {"state": private().state_dict(), "replay": None}),
    "Ledger.claim": (ledger_claim, {"delta": 1e-5}),
    "PrivateQuantile": (sd.PrivateQuantile, {"quantile": 0.5, "ceiling": 10.0, "epsilon": 0.1}),
    "Projected": (sd.Projected, {"clipping": FLAT, "noise": GAUSSIAN, "learning_rate": 0.1, "rho": 2.0, "rounds": 1}),
    "Replay": (sd.Replay, {"because": "an audit", "entered": False, "secret": None}),
    "Scheduled": (sd.Scheduled, {"schedule": CONSTANT, "clipping": sd.Flat}),
    "Sealed": (sd.Sealed, {"value": torch.zeros(1)}),
    "Shuffle": (sd.Shuffle, {"batch_size": 4}),
    "Shards": (sd.Shards, {"names": ["a"], "sizes": [20], "load": lambda name: dataset()}),
    "Sites": (sd.Sites, {"lengths": [20], "held": {0: dataset()}}),
    "Sorted": (sd.Sorted, {"batch_size": 4, "fill": len, "refresh": 1, "pool": None}),
    "Threshold": (sd.Threshold, {"threshold": 1.0, "low": 0.1, "high": 0.5, "refresh": 1}),
    "Unit": (sd.Unit, {"of": "user", "records": 4, "name": "user"}),
    "Views": (sd.Views, {"count": 3}),
    "WithLoss": (sd.WithLoss, {"query": SUM, "bound": 1.0, "noise": GAUSSIAN}),
    "ask": (
        lambda **a: sd.ask(**a),
        {"statistic": sd.statistics.Mean(1.0, GAUSSIAN), "data": torch.rand(20, 3), "ledger": sd.Ledger(), "sampler": None,
         "expected_batch": 20.0, "physical_batch": 1024, "seed": None, "rng": None},
    ),
    "calibrate": (
        sd.calibrate,
        {"query": lambda s: sd.NoisySum(FLAT, sd.Gaussian(s)), "sampler": POISSON, "steps": 10, "epsilon": 3.0, "delta": 1e-5, "dataset_size": 100},
    ),
    "dry_ask": (sd.dry_ask, {"statistic": sd.statistics.Mean(1.0, GAUSSIAN), "sampler": None, "dataset_size": 10}),
    "dry_run": (sd.dry_run, {"query": SUM, "sampler": POISSON, "dataset_size": 100, "steps": 3, "expected_batch": None, "backend": None}),
    "schedules.Constant": (sd.schedules.Constant, {"value": 1.0}),
    "schedules.Cosine": (sd.schedules.Cosine, {"start": 1.0, "end": 0.1, "steps": 10}),
    "schedules.Epochs": (sd.schedules.Epochs, {"schedule": CONSTANT, "period": 3}),
    "schedules.Held": (sd.schedules.Held, {"schedule": CONSTANT, "period": 3}),
    "schedules.Linear": (sd.schedules.Linear, {"start": 1.0, "end": 0.1, "steps": 10}),
    "schedules.Logarithmic": (sd.schedules.Logarithmic, {"top": 1.0, "steepness": 0.5, "period": 3}),
    "schedules.RiseAndFall": (sd.schedules.RiseAndFall, {"start": 0.1, "peak": 1.0, "end": 0.1, "rise": 3, "steps": 10}),
    "schedules.Warmup": (sd.schedules.Warmup, {"steps": 3, "then": CONSTANT}),
    "statistics.PCA": (sd.statistics.PCA, {"components": 2, "noise": GAUSSIAN}),
    "statistics.ClippedSum": (sd.statistics.ClippedSum, {"bound": 1.0, "noise": GAUSSIAN}),
    "statistics.Count": (sd.statistics.Count, {"noise": GAUSSIAN}),
    "statistics.Gram": (sd.statistics.Gram, {"noise": GAUSSIAN, "at_least": 1}),
    "statistics.Mean": (sd.statistics.Mean, {"bound": 1.0, "noise": GAUSSIAN}),
    "statistics.Normaliser": (sd.statistics.Normaliser, {"bound": 1.0, "noise": GAUSSIAN, "typical": (1.0,)}),
    "statistics.Ranges": (sd.statistics.Ranges, {"columns": 3, "noise": GAUSSIAN}),
    "statistics.scalar_mean": (sd.statistics.scalar_mean, {"sigma": 1.0, "n": 100, "epsilon": 1.0}),
    "statistics.vector_mean": (sd.statistics.vector_mean, {"sigma": 1.0, "n": 100, "dimension": 3, "epsilon": 1.0, "delta": 1e-5}),
    "statistics.binary_mean": (sd.statistics.binary_mean, {"epsilon": 1.0}),
    "statistics.binary_error": (sd.statistics.binary_error, {"p": 0.5, "n": 100, "epsilon": 1.0}),
    "statistics.global_sensitivity": (sd.statistics.global_sensitivity, {"query": "mean", "n": 10, "low": 0.0, "high": 1.0}),
    "statistics.local_sensitivity": (sd.statistics.local_sensitivity, {"query": "mean", "data": [0.1, 0.5], "low": 0.0, "high": 1.0}),
    "optim.AdamCorrected": (
        lambda **a: sd.optim.AdamCorrected(**a), {"params": list(nn.Linear(2, 2).parameters()), "lr": 0.1, "noise": 0.1, "betas": (0.9, 0.999)},
    ),
    "optim.Average": (sd.optim.Average, {"model": nn.Linear(2, 2), "decay": 0.9, "warm": True}),
    "optim.noise_scale": (sd.optim.noise_scale, {"query": SUM, "expected_batch": 10.0}),
    "per_sample.JL": (sd.per_sample.JL, {"projections": 32, "directions": None}),
    "per_sample.Vmap": (sd.per_sample.Vmap, {"chunk": None}),
    "nn.mlp": (sd.nn.mlp, {"shape": (4,), "classes": 2, "widths": (4,)}),
    "nn.hidden_net": (sd.nn.hidden_net, {"shape": (4,), "classes": 2, "widths": (4,)}),
    "nn.mnist_cnn": (sd.nn.mnist_cnn, {"shape": (1, 28, 28), "classes": 10}),
    "nn.logistic_regression": (sd.nn.logistic_regression, {"shape": (4,), "classes": 2}),
    "nn.replace_batchnorm": (sd.nn.replace_batchnorm, {"model": nn.Sequential(nn.BatchNorm1d(32)), "groups": 32}),
    "accounting.PLD": (sd.accounting.PLD, {"tolerance": 6e-5, "relation": None}),
    "accounting.RDP": (sd.accounting.RDP, {"orders": (2.0, 8.0)}),
    "accounting.PLD.epsilon": (accountant(sd.accounting.PLD, "epsilon"), {"event": EVENT, "delta": 1e-5}),
    "accounting.PLD.delta": (accountant(sd.accounting.PLD, "delta"), {"event": EVENT, "epsilon": 1.0}),
    "accounting.PLD.bounds": (accountant(sd.accounting.PLD, "bounds"), {"event": EVENT, "delta": 1e-5}),
    "accounting.RDP.epsilon": (accountant(sd.accounting.RDP, "epsilon"), {"event": EVENT, "delta": 1e-5}),
    "accounting.tradeoff": (sd.accounting.tradeoff, {"event": EVENT, "points": 5}),
    "accounting.gaussian_epsilon": (sd.accounting.gaussian_epsilon, {"mu": 1.0, "delta": 1e-5}),
    "accounting.gaussian_delta": (sd.accounting.gaussian_delta, {"mu": 1.0, "epsilon": 1.0}),
    "accounting.gaussian_mu": (sd.accounting.gaussian_mu, {"epsilon": 1.0, "delta": 1e-5}),
    "accounting.gaussian_tradeoff": (sd.accounting.gaussian_tradeoff, {"mu": 1.0, "alpha": 0.5}),
    "accounting.subsampled_tradeoff": (sd.accounting.subsampled_tradeoff, {"mu": 1.0, "rate": 0.5, "alpha": 0.5}),
    "accounting.advanced_drv": (sd.accounting.advanced_drv, {"epsilon": 0.1, "delta": 1e-6, "count": 10, "slack": 1e-6}),
    "accounting.advanced_kov": (sd.accounting.advanced_kov, {"epsilon": 0.1, "delta": 1e-6, "count": 10, "slack": 1e-6}),
    "accounting.amplify_by_sampling": (sd.accounting.amplify_by_sampling, {"epsilon": 1.0, "delta": 1e-6, "rate": 0.1}),
    "accounting.analytic_gaussian": (sd.accounting.analytic_gaussian, {"epsilon": 1.0, "delta": 1e-5, "sensitivity": 1.0}),
    "accounting.classical_gaussian": (sd.accounting.classical_gaussian, {"epsilon": 0.5, "delta": 1e-5, "sensitivity": 1.0}),
    "accounting.laplace": (sd.accounting.laplace, {"epsilon": 1.0, "sensitivity": 1.0}),
    "accounting.exponential": (sd.accounting.exponential, {"epsilon": 1.0, "sensitivity": 1.0}),
    "accounting.group_privacy": (sd.accounting.group_privacy, {"epsilon": 1.0, "delta": 1e-6, "size": 3}),
    "accounting.optimal": (sd.accounting.optimal, {"epsilon": 0.1, "delta": 1e-6, "count": 10, "total_delta": 1e-4}),
    "accounting.parallel": (sd.accounting.parallel, {"guarantees": [sd.accounting.amplify_by_sampling(1.0, 1e-6, 0.1)]}),
    "accounting.sequential": (sd.accounting.sequential, {"guarantees": [sd.accounting.amplify_by_sampling(1.0, 1e-6, 0.1)]}),
    "accounting.shuffle_lower_bound": (sd.accounting.shuffle_lower_bound, {"multiplier": 1.0, "batches": 10, "epochs": 1, "delta": 1e-5}),
    "accounting.liu_talwar": (sd.accounting.liu_talwar, {"epsilon": 1.0}),
    "accounting.expected_runs": (sd.accounting.expected_runs, {"shape": 1.0, "stop": 0.1}),
    "accounting.repeat_until_threshold": (sd.accounting.repeat_until_threshold, {"epsilon": 1.0, "delta": 1e-6, "give_up": 0.1, "slack": 0.01}),
    "events.Batch": (sd.events.Batch, {"event": EVENT}),
    "events.Gaussian": (sd.events.Gaussian, {"multiplier": 1.0}),
    "events.DiscreteGaussian": (sd.events.DiscreteGaussian, {"multiplier": 1.0}),
    "events.Exponential": (sd.events.Exponential, {"epsilon": 1.0}),
    "events.Group": (sd.events.Group, {"event": EVENT, "size": 2}),
    "events.Mixture": (sd.events.Mixture, {"weights": (0.5, 0.5), "events": (EVENT, EVENT)}),
    "events.NonPrivate": (sd.events.NonPrivate, {"reason": "none"}),
    "events.Poisson": (sd.events.Poisson, {"rate": 0.1, "event": sd.events.Gaussian(1.0)}),
    "events.RandomisedResponse": (sd.events.RandomisedResponse, {"flip": 0.1, "buckets": 2}),
    "events.Repeat": (sd.events.Repeat, {"event": EVENT, "count": 2}),
    "events.TruncatedPoisson": (sd.events.TruncatedPoisson, {"rate": 0.1, "dataset_size": 20, "max_batch": 5, "event": sd.events.Gaussian(1.0)}),
    "events.TuneNegativeBinomial": (sd.events.TuneNegativeBinomial, {"event": EVENT, "shape": 1.0, "stop": 0.1}),
    "events.TunePoisson": (sd.events.TunePoisson, {"event": EVENT, "mean": 3.0}),
    "events.compose": (sd.events.compose, {"events": [EVENT]}),
    "events.from_json": (sd.events.from_json, {"data": sd.events.to_json(EVENT)}),
    "events.to_json": (sd.events.to_json, {"event": EVENT}),
    "clipping.Multipliers": (sd.clipping.Multipliers, {"values": (1.0,)}),
}  # fmt: skip
"""One right call of each public name."""


def wrong_calls() -> Iterator[tuple[str, str, Callable[..., Any], dict[str, Any]]]:
    """Yields every wrong call: where it stands, what is wrong with it, what is called, and with which arguments."""
    for name, (function, right) in VALID.items():
        for argument, usual in right.items():
            for number, value in enumerate(wrong_values()):
                if callable(value) and (callable(usual) or argument == "collate"):
                    continue  # an error in a function of the user's own is raised there
                yield name, f"{argument}={number}:{type(value).__name__}", function, {**right, argument: value}
            yield name, f"without {argument}", function, {k: v for k, v in right.items() if k != argument}
        yield name, "unknown argument", function, {**right, "no_such_argument": 1}


def complaint(function: Callable[..., Any], arguments: dict[str, Any]) -> str | None:
    """Returns what is wrong with the way a call fails, or None."""
    try:
        made = function(**arguments)
        if inspect.isgenerator(made):
            made.close()
    except ALLOWED as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if DEEP.search(str(error)):
            return f"{type(error).__name__}: {error}"
        if not last.filename.startswith(PACKAGE) and last.filename != __file__:
            return f"raised in {last.filename}:{last.lineno}: {type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


NOT_CALLED = {
    "ClaimVoided",
    "ClaimVoidedWarning",
    "Diverged",
    "Draws",
    "EqualShare",
    "FineTuned",
    "Full",
    "Guarantee",
    "LeastNoise",
    "Ledger",
    "Lot",
    "Refusal",
    "finetune",
    "fit",
    "load",
}
"""Names that take no arguments, that the library makes and users read, or that read and write folders (tested below);
`finetune` is tested in tests/finetuning."""


def test_every_public_name_is_in_the_table() -> None:
    assert {name for name in sd.__all__ if callable(getattr(sd, name))} - NOT_CALLED <= set(VALID)


@pytest.mark.parametrize("name", VALID)
def test_the_right_call_works(name: str) -> None:
    function, arguments = VALID[name]
    function(**arguments)


@pytest.mark.parametrize("name", VALID)
def test_wrong_arguments_end_in_one_line_of_this_library(name: str) -> None:
    complaints = {}
    for at, what, function, arguments in wrong_calls():
        if at == name and (found := complaint(function, arguments)):
            complaints[what] = found
    assert not complaints


SECRET = 0.7351942
"""A number that stands in a record."""


@pytest.mark.parametrize(
    "call",
    [
        lambda data: private().draws(data, data.tensors[0], batch_size=2, epochs=1),
        lambda data: private().draws(data, data.tensors[0], 2),
        lambda data: private().draws(data, sd.Poisson(0.5), data.tensors[0]),
        lambda data: private().draws(data, sd.Poisson(0.5), 2, unit=None, collate=data.tensors[0].tolist()),
        lambda data: sd.ask(data.tensors[0], data, ledger=sd.Ledger()),
        lambda data: sd.ask(sd.statistics.Mean(1.0, GAUSSIAN), data, ledger=data.tensors[0].tolist()),
        lambda data: sd.NoisySum(data.tensors[0], GAUSSIAN),
        lambda data: sd.Flat(data.tensors[0]),
        lambda data: sd.Poisson(data.tensors[0].numpy()),
        lambda data: sd.Private(nn.Linear(3, 2), losses, data.tensors[0]),
        lambda data: sd.Private(nn.Linear(3, 2), losses, SUM, epsilon=data.tensors[0]),
        lambda data: private().load_state_dict(data.tensors[0].tolist()),
        lambda data: sd.accounting.PLD().epsilon(data.tensors[0], 1e-5),
    ],
)
def test_records_that_are_given_in_the_wrong_place_are_not_quoted(call: Callable[[TensorDataset], Any]) -> None:
    data = TensorDataset(torch.full((20, 3), SECRET), torch.zeros(20, dtype=torch.long))
    with pytest.raises((TypeError, ValueError, sd.Refusal)) as raised:
        call(data)
    assert "0.735" not in str(raised.value)


PATHS = [value for value in wrong_values() if not isinstance(value, str | Path) and value is not None]


@pytest.mark.parametrize("value", PATHS, ids=lambda value: type(value).__name__)
def test_a_path_that_is_none_is_refused_in_one_line(value: Any) -> None:
    with pytest.raises(TypeError, match="run="):
        sd.load(value)
    with pytest.raises(TypeError, match="out="):
        sd.fit("spiral", out=value)


@pytest.mark.parametrize("value", PATHS, ids=lambda value: type(value).__name__)
def test_what_is_no_recipe_and_no_parameters_is_refused_in_one_line(value: Any) -> None:
    if not isinstance(value, nn.Module):
        assert complaint(sd.fit, {"recipe": value}) is None
    if not isinstance(value, dict):
        with pytest.raises(TypeError, match="parameters="):
            sd.fit("spiral", parameters=value)


def test_a_run_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a run directory"):
        sd.load(tmp_path / "nowhere")
