"""Runs in which the last rank was given something else, and honest runs that only look like it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.accounting import RDP
from sordino.clipping.clipping_rule import Rule, Stateless
from sordino.distributed.process_group import Ranks, ranks_of
from sordino.distributed.shared_lot import Disagreement, RankedLot
from sordino.events import Gaussian as GaussianEvent
from sordino.release.sensitivity import Sensitivity
from sordino.rng.streams import Rng
from tests.problems import cross_entropy, linear

SCALE = 1.0


@dataclass(frozen=True)
class OwnRule(Stateless):
    """A clipping rule as a user writes it."""

    STRENGTH: ClassVar[float] = 1.0
    bound: float = 1.0
    shape: Callable[[Tensor], Tensor] = torch.ones_like

    def rule(self, state: Any, lot: Callable[[], Any]) -> Rule:
        return Rule(self.weights, Sensitivity(l2=self.bound))

    def weights(self, norms: Any) -> Tensor:
        length = norms.total()
        return (self.bound * self.shape(length) / length.clamp(min=1e-12)).clamp(max=1.0)[:, None]


@dataclass(frozen=True)
class OwnRuleChanged(OwnRule):
    """The same class by name, with other code."""

    def weights(self, norms: Any) -> Tensor:
        length = norms.total()
        return (self.bound * self.shape(length) / length.clamp(min=1e-9)).clamp(max=1.0)[:, None]


OwnRuleChanged.__qualname__ = OwnRule.__qualname__
OwnRuleChanged.__name__ = OwnRule.__name__


class OwnData:
    """Records that code of its own reads."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.data[index]


class Jittered(OwnData):
    """Records that change with every reading, by torch's generator or by one of its own, another one on every rank."""

    def __init__(self, data: TensorDataset, seed: int | None = None) -> None:
        super().__init__(data)
        self.random = None if seed is None else np.random.default_rng(seed)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        x, y = self.data[index]
        moved = float(torch.randn(()) if self.random is None else self.random.standard_normal())
        return x + 0.01 * moved, y


def scaled_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model, x, y) * SCALE


def twice_scaled_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model, x, y) * SCALE * 2


twice_scaled_loss.__qualname__ = scaled_loss.__qualname__


def weighted_loss(weight: float, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model, x, y) * weight


def closed_over(weight: float) -> Callable[..., Tensor]:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x, y) * weight

    return loss


def loss_on(device: str, rank: int) -> Callable[..., Tensor]:
    """As scripts write it: a device and a rank that are not the same everywhere, and change nothing."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if rank == 0:
            x = x.to("cpu")
        assert device.startswith("cuda")
        return cross_entropy(model, x, y)

    return loss


def plain_collate(records: list[Any]) -> Any:
    return tuple(torch.stack(column) for column in zip(*records, strict=True))


def scaling_collate(records: list[Any]) -> Any:
    x, y = (torch.stack(column) for column in zip(*records, strict=True))
    return x * 2, y


def data(changed: bool = False) -> TensorDataset:
    x, y = linear(60).tensors
    x = x.clone()
    if changed:
        x[41, 3] += 0.25
    return TensorDataset(x, y)


@dataclass(frozen=True)
class Setting:
    """What one rank was given."""

    query: Any = field(default_factory=lambda: _noise(1.1))
    sampler: Any = field(default_factory=lambda: sd.Poisson(0.2))
    steps: int = 2
    loss: Callable[..., Tensor] = cross_entropy
    data: Any = field(default_factory=data)
    options: dict[str, Any] = field(default_factory=lambda: {"expected_batch": 12, "physical_batch": 4})
    private: dict[str, Any] = field(default_factory=dict)
    dropout: float = 0.1
    training: bool = True
    frozen: bool = False
    spent: bool = False
    threads: int = 1
    scale: float = 1.0
    precision: str = "highest"


def _options(**other: Any) -> dict[str, Any]:
    return {"expected_batch": 12, "physical_batch": 4, **other}


def _noise(multiplier: float) -> sd.NoisySum:
    return sd.NoisySum(sd.Flat(1.0), sd.Gaussian(multiplier))


def _scheduled(last: float) -> sd.NoisySum:
    return sd.NoisySum(sd.Scheduled(sd.schedules.Linear(1.0, last, 10)), sd.Gaussian(1.1))


_HONEST = Setting()
_OWN = replace(_HONEST, query=sd.NoisySum(OwnRule(), sd.Gaussian(1.1)))
_RECORDS = replace(_HONEST, data=OwnData(data()), options=_options(collate=plain_collate))
_IDS = ["a", "b", "c"] * 20

DIFFERENT: dict[str, tuple[Setting, Setting, str]] = {
    "noise": (_HONEST, replace(_HONEST, query=_noise(0.1)), "query.noise.multiplier: rank 0 has 1.1, rank"),
    "bound": (_HONEST, replace(_HONEST, query=sd.NoisySum(sd.Flat(1.1), sd.Gaussian(1.1))), "query.clipping.bound"),
    "one ulp of noise": (_HONEST, replace(_HONEST, query=_noise(1.1000000000000003)), "query.noise.multiplier"),
    "another rule": (
        _HONEST,
        replace(_HONEST, query=sd.NoisySum(sd.Automatic(1.0), sd.Gaussian(1.1))),
        "query.clipping",
    ),
    "a schedule": (
        replace(_HONEST, query=_scheduled(0.5)),
        replace(_HONEST, query=_scheduled(0.6)),
        "query.clipping.schedule.end: rank 0 has 0.5, rank",
    ),
    "a nested rule": (
        replace(_HONEST, query=sd.NoisySum(sd.Layerwise({"0.": 1.0, "3.": 0.5}), sd.Gaussian(1.1))),
        replace(_HONEST, query=sd.NoisySum(sd.Layerwise({"0.": 1.0, "3.": 0.6}), sd.Gaussian(1.1))),
        "query.clipping",
    ),
    "own rule, a field": (
        _OWN,
        replace(_OWN, query=sd.NoisySum(OwnRule(1.1), sd.Gaussian(1.1))),
        "query.clipping.bound",
    ),
    "own rule, a constant of its class": (_OWN, replace(_OWN, scale=3.0), "query.clipping.STRENGTH: rank 0 has 1.0"),
    "own rule, its code": (
        _OWN,
        replace(_OWN, query=sd.NoisySum(OwnRuleChanged(), sd.Gaussian(1.1))),
        r"query.clipping.weights\(\)",
    ),
    "own rule, a function": (
        _OWN,
        replace(_OWN, query=sd.NoisySum(OwnRule(shape=lambda r: torch.ones_like(r) * 1.0), sd.Gaussian(1.1))),
        "query.clipping.shape",
    ),
    "rate": (_HONEST, replace(_HONEST, sampler=sd.Poisson(0.21)), "sampler.rate: rank 0 has 0.2, rank"),
    "sampler": (_HONEST, replace(_HONEST, sampler=sd.Shuffle(5)), "sampler"),
    "steps": (_HONEST, replace(_HONEST, steps=3), "steps: rank 0 has 2, rank"),
    "expected batch": (_HONEST, replace(_HONEST, options=_options(expected_batch=12.5)), "expected_batch"),
    "physical batch": (_HONEST, replace(_HONEST, options=_options(physical_batch=5)), "physical_batch"),
    "unit": (
        replace(_HONEST, options=_options(unit=sd.Unit(_IDS, name="person"))),
        replace(_HONEST, options=_options(unit=sd.Unit(_IDS[1:] + ["b"], name="person"))),
        "records of the units",
    ),
    "records of a unit": (
        replace(_HONEST, options=_options(unit=sd.Unit(_IDS, records=4, name="person"))),
        replace(_HONEST, options=_options(unit=sd.Unit(_IDS, records=5, name="person"))),
        "records of the units.records",
    ),
    "penalty": (
        replace(_HONEST, private={"penalty": sd.L2(0.1)}),
        replace(_HONEST, private={"penalty": sd.L2(0.2)}),
        "penalty.strength",
    ),
    "accountant": (_HONEST, replace(_HONEST, private={"accountant": RDP()}), "accountant"),
    "code of the loss": (
        replace(_HONEST, loss=scaled_loss),
        replace(_HONEST, loss=twice_scaled_loss),
        "loss_fn: not the same on rank",
    ),
    "a constant of the loss": (
        replace(_HONEST, loss=scaled_loss),
        replace(_HONEST, loss=scaled_loss, scale=3.0),
        "loss_fn global 'SCALE': rank 0 has 1.0, rank",
    ),
    "an argument of the loss": (
        replace(_HONEST, loss=partial(weighted_loss, 1.0)),
        replace(_HONEST, loss=partial(weighted_loss, 2.0)),
        r"loss_fn.args\[0\]",
    ),
    "a variable around the loss": (
        replace(_HONEST, loss=closed_over(1.0)),
        replace(_HONEST, loss=closed_over(2.0)),
        "loss_fn variable 'weight'",
    ),
    "collate": (_RECORDS, replace(_RECORDS, options=_options(collate=scaling_collate)), "collate"),
    "one number in the data": (_HONEST, replace(_HONEST, data=data(changed=True)), "records of the dataset"),
    "one number that code reads": (
        _RECORDS,
        replace(_RECORDS, data=OwnData(data(changed=True))),
        "records of the data",
    ),
    "number of records": (
        _HONEST,
        replace(_HONEST, data=TensorDataset(*(t[:59] for t in data().tensors))),
        "number of records: rank 0 has 60",
    ),
    "seed": (_HONEST, replace(_HONEST, private={"seed": 5}), "random streams"),
    "dropout": (_HONEST, replace(_HONEST, dropout=0.2), "model.2"),
    "mode of the model": (_HONEST, replace(_HONEST, training=False), "model.2 mode"),
    "a frozen layer": (_HONEST, replace(_HONEST, frozen=True), "model.3.bias"),
    "history of the ledger": (_HONEST, replace(_HONEST, spent=True), "ledger"),
    "threads": (_HONEST, replace(_HONEST, threads=2), "environment: threads: rank 0 has 1, rank"),
    "precision of products": (_HONEST, replace(_HONEST, precision="medium"), "torch: float32 matmul precision"),
    "engine": (
        _HONEST,
        replace(
            _HONEST, private={"backend": sd.per_sample.Captured(sd.per_sample.PerformanceOptions(1, measure=False))}
        ),
        "backend.options.scratch_bytes",
    ),
}


def honest(name: str, ranks: Ranks) -> Setting:
    """Runs whose ranks are given the same, in words that differ."""
    return {
        "plain": _HONEST,
        "a rule of one's own": _OWN,
        "records by code of one's own": _RECORDS,
        "random records": replace(_RECORDS, data=Jittered(data())),
        "random by itself": replace(_RECORDS, data=Jittered(data(), ranks.rank)),
        "device and rank": replace(_HONEST, loss=loss_on(f"cuda:{ranks.rank}", ranks.rank)),
        "made here and there": replace(_HONEST, query=_noise(1.1), loss=closed_over(1.0), data=data()),
    }[name]


HONEST = ("plain", "a rule of one's own", "records by code of one's own", "random records", "device and rank")
HONEST += ("made here and there",)


def train_with(ranks: Ranks, setting: Setting) -> tuple[int, str, str]:
    """Returns lots drawn, what the ledger holds, and the message of a disagreement if there was one."""
    global SCALE
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(setting.dropout), nn.Linear(8, 2))
    model.train(setting.training)
    model[3].bias.requires_grad_(not setting.frozen)
    ledger = sd.Ledger()
    if setting.spent:
        ledger.release(GaussianEvent(5.0))
    before, SCALE = SCALE, setting.scale
    OwnRule.STRENGTH = setting.scale
    torch.set_num_threads(setting.threads)
    torch.set_float32_matmul_precision(setting.precision)
    try:
        private = sd.Private(
            model, setting.loss, setting.query, **{"seed": 0, "mesh": ranks, "ledger": ledger, **setting.private}
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            for lot in private.draws(setting.data, setting.sampler, setting.steps, **setting.options):
                private.backward(lot)
                optimizer.step()
        except Disagreement as error:
            return private.steps, str(private.event), str(error)
        return private.steps, str(private.event), ""
    finally:
        SCALE = OwnRule.STRENGTH = before
        torch.set_num_threads(1)
        torch.set_float32_matmul_precision("highest")


def differing(ranks: Ranks, name: str) -> tuple[int, str, str]:
    usual, other, _ = DIFFERENT[name]
    return train_with(ranks, other if ranks.rank == ranks.size - 1 else usual)


def agreeing(ranks: Ranks, name: str) -> tuple[int, str, str]:
    return train_with(ranks, honest(name, ranks))


def changed_on_the_way(ranks: Ranks, what: str) -> tuple[int, int, str]:
    """A run in which the last rank changes something after two lots; lots drawn, lots released, and the message."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    ledger, released = sd.Ledger(), 0
    private = sd.Private(model, cross_entropy, _noise(1.1), seed=0, mesh=ranks, ledger=ledger)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for lot in private.draws(data(), sd.Poisson(0.2), 4, expected_batch=12, physical_batch=4):
            if lot.step == 2 and ranks.rank == ranks.size - 1:
                _CHANGES[what](private, ledger)
            private.backward(lot)
            optimizer.step()
            released += 1
    except Disagreement as error:
        return private.steps, released, str(error)
    return private.steps, released, ""


def _spend(private: sd.Private, ledger: sd.Ledger) -> None:
    ledger.release(GaussianEvent(5.0))


def _less_noise(private: sd.Private, ledger: sd.Ledger) -> None:
    object.__setattr__(private._query.noise, "multiplier", 0.1)


_CHANGES = {"ledger": _spend, "noise": _less_noise}


def at_sites(ranks: Ranks, changed: bool) -> tuple[int, str]:
    """Two sites, the second held by all ranks; `changed`: with another record on the last one."""
    x, y = data(changed=changed and ranks.rank == ranks.size - 1).tensors
    sites = {1: TensorDataset(x[30:], y[30:])}
    if ranks.rank == 0:
        sites[0] = TensorDataset(x[:30], y[:30])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    private = sd.Private(model, cross_entropy, _noise(1.1), seed=0, mesh=ranks)
    try:
        for lot in private.draws(sd.Sites([30, 30], sites), sd.Poisson(0.2), 2, expected_batch=12, physical_batch=4):
            private.backward(lot)
    except Disagreement as error:
        return private.steps, str(error)
    return private.steps, ""


def refused_on_one(ranks: Ranks) -> None:
    """The last rank gives something that is no sampler."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    private = sd.Private(model, cross_entropy, _noise(1.1), seed=0, mesh=ranks)
    sampler: Any = "all of them" if ranks.rank == ranks.size - 1 else sd.Poisson(0.2)
    private.draws(data(), sampler, 2, expected_batch=12)


def asking(ranks: Ranks, what: str) -> tuple[str, str]:
    """All ranks of torch's own group ask for a mean or a quantile; the last one has another record, or asks otherwise."""
    last, ledger = ranks.rank == ranks.size - 1, sd.Ledger()
    values = data(changed=last and what == "records").tensors[0]
    try:
        if what == "quantile":
            values = data(changed=last).tensors[0].abs().sum(1)
            sd.PrivateQuantile(0.5, ceiling=20.0, epsilon=1.0).of(values, ledger=ledger)
        else:
            noise = sd.Gaussian(2.0 if last and what == "noise" else 5.0)
            sd.ask(sd.statistics.Mean(1.0, noise), values, ledger=ledger, expected_batch=60)
    except Disagreement as error:
        return str(ledger.event()), str(error)
    return str(ledger.event()), ""


def finding_on_one(ranks: Ranks, where: int | None) -> bool:
    """Returns what this rank hears when the rank `where` has found something, or none has."""
    lot = RankedLot(ranks, [ranks.rank], ranks.size, 1, 0, Rng(bytes(32)), lambda: None, lambda reason: None)
    return lot.any_rank(ranks.rank == where)


def given_a_mesh(ranks: Ranks) -> tuple[str, int]:
    """Returns what is said of a mesh of two dimensions, and how many ranks its second dimension has."""
    mesh = init_device_mesh("cpu", (1, ranks.size), mesh_dim_names=("model", "records"))
    try:
        said = f"taken: {ranks_of(mesh)}"
    except ValueError as error:
        said = str(error)
    along_records = ranks_of(mesh["records"])
    assert along_records is not None
    return said, along_records.size
