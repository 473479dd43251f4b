"""What an adaptive attack on fixed-size batches reaches, between the two bounds of `PLD`.

    python bench/fixed_size_attack.py             writes bench/results/fixed_size_attack.json; some minutes

Under replace-one, others that all pull the same way make one release either the pair of removing a record or that of
adding one. An attacker who chooses the data after every release can choose between the two by the loss so far. The
best choice follows by backward induction over the releases, on a lattice of losses:

    V_0(l) = (1 − e^{ε − l})₊        V_{k+1}(l) = max(E_remove[V_k(l + L)], E_add[V_k(l + L)])        δ(ε) = V_T(0)

Losses are split between lattice points so that their means are kept; the lattice ends at losses that hardly occur. No
error of either is charged: this is a measurement.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from sordino.accounting import PLD  # noqa: E402
from sordino.events import FixedSize, Gaussian, Repeat  # noqa: E402

BATCH, RECORDS, MULTIPLIER, STEPS, DELTA = 250, 60_000, 1.1, 7200, 1e-5
STEP, POINTS, LOWEST = 2e-3, 1 << 14, -6.0


def transform(loss: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Returns the transform of a loss's law on the lattice, for E[V(l + L)]."""
    place = loss / STEP
    below = np.floor(place).astype(int)
    share = place - below
    law = np.zeros(2 * POINTS)
    np.add.at(law, -below % len(law), weight * (1 - share))
    np.add.at(law, -(below + 1) % len(law), weight * share)
    return np.fft.rfft(law)


def adaptive_delta(epsilon: float, laws: list[np.ndarray]) -> float:
    """Returns δ at ε of the attacker who chooses the best of these laws before every release."""
    losses = LOWEST + STEP * np.arange(POINTS)
    value = np.maximum(0.0, -np.expm1(np.minimum(epsilon - losses, 0.0)))
    padded = np.zeros(2 * POINTS)
    for _ in range(STEPS):
        padded[:POINTS] = value
        padded[POINTS : 3 * POINTS // 2] = 1.0  # above the lattice; below it, nothing is left
        spectrum = np.fft.rfft(padded)
        value = np.max([np.fft.irfft(spectrum * law, 2 * POINTS)[:POINTS] for law in laws], axis=0)
    return float(value[round(-LOWEST / STEP)])


def main() -> int:
    """Bisects for the ε of the attack and writes it beside the bounds."""
    rate, mu = BATCH / RECORDS, 2 / MULTIPLIER
    z = np.linspace(-12, 14, 200_001)
    weight = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    loss = np.log1p(rate * np.expm1(mu * z - mu**2 / 2))
    laws = [transform(loss, weight * np.exp(loss)), transform(-loss, weight)]
    low, high = PLD().bounds(Repeat(FixedSize(BATCH, RECORDS, Gaussian(MULTIPLIER)), STEPS), DELTA)
    below, above = low, high
    while above - below > 0.01:
        # δ falls steeply, so most of the interval is left out at a time
        middle = below + 0.2 * (above - below)
        below, above = (middle, above) if adaptive_delta(middle, laws) > DELTA else (below, middle)
    result = {"bounds": [low, high], "adaptive attack": [below, above], "delta": DELTA, "steps": STEPS}
    (ROOT / "bench" / "results" / "fixed_size_attack.json").write_text(
        json.dumps(result, indent=1) + "\n", encoding="utf-8"
    )
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
