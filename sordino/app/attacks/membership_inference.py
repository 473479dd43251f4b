"""Membership inference on a run by loss threshold, LiRA and RMIA, beside what the claim allows.

Members are records the run was trained on, others are records like them that it was not; scores are those of the final
network. The claim's trade-off curve is the ceiling: whatever the attack, true positives ≤ 1 − f(false positives).

Privacy: this is a risk report about natural records. An attack under the ceiling proves nothing; one above it, beyond
its confidence, would contradict the claim, if members and others differ in nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray

from sordino.accounting.tradeoff import Tradeoff, tradeoff
from sordino.app.report.evidence import Evidence, read
from sordino.app.runs.directory import CONFIG, MODEL
from sordino.app.runs.problem import build
from sordino.app.runs.run_data import load_run_data
from sordino.app.runs.settings import read_config as read_config
from sordino.attacks import scores
from sordino.attacks.roc import Roc
from sordino.attacks.shadows import collect_head_inputs, train_shadow_heads

RATES = (0.001, 0.01, 0.1)
LARGEST_NUMBER = 1000
"""Members, and as many others."""


@dataclass(frozen=True, eq=False)
class Membership:
    """What the attacks reached on one run."""

    name: str
    epsilon: float | None
    rocs: dict[str, Roc]
    ceiling: Tradeoff | None

    def __str__(self) -> str:
        """Returns a table of true-positive rates in words, with the ceiling of the claim."""
        # The ceiling is the last row, so that every attack is read against it.
        claimed = "no guarantee" if self.epsilon is None else f"claimed ε = {self.epsilon:.3f}"
        first = next(iter(self.rocs.values()))
        lines = [
            f"membership inference on {self.name} ({claimed}): {len(first.members)} members, {len(first.others)} others",
            "  true positives at false positives of "
            + ", ".join(f"{rate:g}" for rate in RATES)
            + "; area under the curve",
        ]
        for name, roc in self.rocs.items():
            found = "  ".join(f"{roc.true_positives_at(rate):7.4f}" for rate in RATES)
            lines.append(f"  {name:<8} {found}   {roc.area:.3f}")
        if self.ceiling is not None:
            lines.append("  ceiling  " + "  ".join(f"{float(self.ceiling.power(rate)):7.4f}" for rate in RATES))
        lines.append("  a risk report: what these attacks reach on these records, not what others could")
        return "\n".join(lines)

    def table(self) -> dict[str, Any]:
        """Returns the result of membership inference as JSON holds it."""
        return {
            "epsilon": self.epsilon,
            "members": len(next(iter(self.rocs.values())).members),
            "rates": list(RATES),
            "attacks": {name: [roc.true_positives_at(rate) for rate in RATES] for name, roc in self.rocs.items()},
            "area": {name: roc.area for name, roc in self.rocs.items()},
            "ceiling": None if self.ceiling is None else [float(self.ceiling.power(rate)) for rate in RATES],
        }


@dataclass(frozen=True, eq=False)
class Target:
    """A run's network, with records it was trained on and others."""

    evidence: Evidence
    model: torch.nn.Module
    x: torch.Tensor
    y: torch.Tensor
    member: NDArray[np.bool_]
    classes: int


def load_target(folder: str | Path, largest_number: int = LARGEST_NUMBER) -> Target:
    """Loads the finished run that membership inference attacks, with equally many members and other records.

    The others are training records that the run was not given if it was given a part of them, else test records.
    """
    # The network, the records and their order follow from the run directory.
    evidence = read(folder)
    settings = read_config(evidence.folder / CONFIG).to_settings()
    records_given = settings.options.records
    prepared = load_run_data(settings.recipe, None, lambda _: None, settings.own)
    model = build(settings.recipe, prepared, settings.options.init_seed).model
    path = evidence.folder / MODEL
    if not path.is_file():
        raise ValueError(f"{evidence.folder}: has no {MODEL}; the run has not finished")
    model.load_state_dict(safetensors.torch.load_file(path))
    # Records from the same training set make the fairest comparison.
    (x, y), (u, v) = prepared.train.tensors, prepared.test.tensors
    if records_given is not None and len(x) > records_given:
        (x, u), (y, v) = (x[:records_given], x[records_given:]), (y[:records_given], y[records_given:])
    # As many members as others, so that guessing is right half of the time.
    n = min(largest_number, len(x), len(u))
    member = np.arange(2 * n) < n
    return Target(
        evidence, model.eval(), torch.cat([x[:n], u[:n]]), torch.cat([y[:n], v[:n]]), member, prepared.classes
    )


def attack_membership(
    folder: str | Path, shadows: int = 64, *, seed: int = 0, largest_number: int = LARGEST_NUMBER
) -> Membership:
    """Attacks a run by membership inference and returns what each attack reached."""
    # The loss threshold needs the network alone.
    attack_target = load_target(folder, largest_number)
    with torch.no_grad():
        logits = torch.cat([attack_target.model(chunk) for chunk in attack_target.x.split(1000)]).double().numpy()
    labels = attack_target.y.numpy()
    phi = scores.logit_of_label(logits, labels)
    attack_scores = {"loss": scores.loss_score(phi)}
    # LiRA and RMIA compare with shadow heads, each trained on half of the records.
    if shadows:
        shadow_models = train_shadow_heads(
            collect_head_inputs(attack_target.model, attack_target.x),
            attack_target.y,
            attack_target.classes,
            shadows,
            seed,
        )
        heads = scores.logit_of_label(shadow_models.logits, labels)
        aligned_confidence = scores.align_with_shadows(phi, heads)
        attack_scores["LiRA"] = scores.lira_score(aligned_confidence, heads, shadow_models.inside)
        # The population that RMIA compares with is a part of the others, which is then not judged by it.
        population = np.flatnonzero(~attack_target.member)[::4]
        attack_scores["RMIA"] = scores.rmia_score(aligned_confidence, heads, shadow_models.inside, population)
    # Members and others are scored by every attack; RMIA leaves its population out.
    rocs = {}
    for name, values in attack_scores.items():
        others = ~attack_target.member
        if name == "RMIA":
            others[population] = False
        rocs[name] = Roc(values[attack_target.member], values[others])
    # The ceiling is what the claim allows any attack.
    guarantee = attack_target.evidence.guarantee
    ceiling = None if guarantee is None else tradeoff(guarantee.event)
    return Membership(attack_target.evidence.name, None if guarantee is None else guarantee.epsilon, rocs, ceiling)
