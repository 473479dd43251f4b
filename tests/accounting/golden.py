"""The reference numbers of tests/golden/accounting.json, each turned into a call of the library."""

import json
import math
from pathlib import Path

from sordino import accounting as A
from sordino.events import (
    BallsInBins,
    FixedSize,
    Gaussian,
    Group,
    Laplace,
    Poisson,
    RandomisedResponse,
    Relation,
    Repeat,
    Shuffle,
    Together,
    TruncatedPoisson,
    TuneNegativeBinomial,
    TunePoisson,
)

ENTRIES = json.loads((Path(__file__).parent.parent / "golden" / "accounting.json").read_text())["entries"]


def event(s):
    """The event of a setting."""
    match s["mechanism"]:
        case "poisson_subsampled_gaussian":
            run = Repeat(Poisson(s["q"], Gaussian(s["sigma"])), s["steps"])
            return Group(run, s["group_size"]) if "group_size" in s else run
        case "heterogeneous_poisson_subsampled_gaussian":
            return Together(*(Repeat(Poisson(p["q"], Gaussian(p["sigma"])), p["steps"]) for p in s["phases"]))
        case "gaussian":
            return Repeat(Gaussian(s["sigma"]), s.get("compositions", 1))
        case "laplace":
            return Repeat(Laplace(s["scale"]), s["compositions"])
        case "poisson_subsampled_laplace":
            return Repeat(Poisson(s["q"], Laplace(s["scale"])), s["steps"])
        case "randomized_response":
            return Repeat(RandomisedResponse(s["noise_parameter"], s["buckets"]), s.get("compositions", 1))
        case "balls_in_bins_gaussian(random allocation, 1 of t per epoch)":
            return Repeat(BallsInBins(s["steps_per_epoch"], Gaussian(s["sigma"])), s["epochs"])
        case "truncated_poisson_gaussian":
            return Repeat(TruncatedPoisson(s["q"], s["n"], s["max_batch"], Gaussian(s["sigma"])), s["steps"])
        case "amplified_banded_MF":
            return Repeat(Poisson(s["q_within_group"], Gaussian(s["sigma"])), math.ceil(s["iterations"] / s["bands"]))
        case "tree_aggregation_single_epoch":
            return Repeat(Gaussian(s["sigma"]), math.ceil(math.log2(s["steps"] + 1)))
        case "shuffled_batches_dpsgd":
            return Repeat(Shuffle(Repeat(Gaussian(s["sigma"]), s["batches_per_epoch"])), s["epochs"])
        case "sampled_without_replacement_gaussian":
            return Repeat(FixedSize(s["m"], s["n"], Gaussian(s["sigma_over_clip"])), s["steps"])
    raise KeyError(s["mechanism"])


def value(entry):
    """What the library says, for the quantity the entry is about."""
    s, method = entry["setting"], entry["method"]
    for start, answer in METHODS:
        if method.startswith(start):
            return answer(s)
    raise KeyError(method)


def _classic_rdp(s):
    rdp = A.RDP(orders=A.OPACUS_ORDERS)
    curve = rdp.curve(event(s))
    return min(r - math.log(s["delta"]) / (a - 1) for a, r in zip(rdp.orders, curve, strict=True))


def _steps(accountant):
    def most(s):
        run = lambda n: Repeat(Poisson(s["q"], Gaussian(s["sigma"])), n)  # noqa: E731
        return A.calibrate(run, accountant, s["target_epsilon"], s["delta"], whole=True)

    return most


def _noise(s):
    run = lambda x: Repeat(Poisson(s["q"], Gaussian(x)), s["steps"])  # noqa: E731
    return A.calibrate(run, A.PLD(), s["target_epsilon"], s["delta"])


def _pld(s):
    relation = Relation.REPLACE if s.get("neighbouring") == "replace_one" else None
    return A.PLD(relation=relation).epsilon(event(s), s["delta"])


def _tuned(s):
    base = event(s["base"])
    search = (
        TunePoisson(base, s["mean"])
        if s["repetitions"] == "poisson"
        else TuneNegativeBinomial(base, 1.0, 1 / s["mean"])
    )
    return A.RDP().epsilon(search, s["base"]["delta"])


METHODS = (
    ("rdp_best_conversion", lambda s: A.RDP(orders=A.OPACUS_ORDERS).epsilon(event(s), s["delta"])),
    ("rdp_classic_conversion", _classic_rdp),
    ("rdp repeat_and_select", _tuned),
    ("rdp", lambda s: A.RDP().epsilon(event(s), s["delta"])),
    ("moments_accountant", lambda s: A.Moments().epsilon(event(s), s["delta"])),
    ("max_steps_under_moments", _steps(A.Moments())),
    ("max_steps_under_tight", _steps(A.PLD())),
    ("calibrated_sigma", _noise),
    ("pld_delta", lambda s: A.PLD().delta(event(s), s["epsilon"])),
    ("pure eps", lambda s: A.Basic().epsilon(event(s), 0.0)),
    ("pld", _pld),
    ("exact", _pld),
    ("closed form q", _pld),
    ("certified LOWER", lambda s: A.shuffle_lower_bound(s["sigma"], s["batches_per_epoch"], s["epochs"], s["delta"])),
    ("advanced_composition_valid", lambda s: A.Advanced().epsilon(event(s), s["delta"])),
    ("advanced_composition_DRV", lambda s: A.advanced_drv(s["eps"], s["delta"], s["k"], s["delta_prime"])[0]),
    ("advanced_composition_KOV", lambda s: A.advanced_kov(s["eps"], s["delta"], s["k"], s["delta_prime"])[0]),
    ("optimal_composition", lambda s: A.optimal(s["eps"], s["delta"], s["k"], s["delta_total"])),
    ("subsampling_amplification", lambda s: A.amplify_by_sampling(s["epsilon"], 0.0, s["q"])[0]),
    ("basic composition", lambda s: A.Basic().epsilon(event(s), s["delta"])),
    ("gdp_clt", lambda s: A.GaussianCLT().epsilon(event(s), s["delta"])),
    ("analytic_gaussian", lambda s: A.analytic_gaussian(s["epsilon"], s["delta"], s["sensitivity"])),
    ("classical_gaussian", lambda s: A.classical_gaussian(s["epsilon"], s["delta"], s["sensitivity"])),
    ("true delta", lambda s: A.PLD().delta(event(s), s["epsilon"])),
    ("f_{eps", lambda s: float(A.epsilon_delta_tradeoff(s["epsilon"], s["delta"], s["type_I"]))),
)
