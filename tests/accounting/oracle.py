"""An oracle for δ(ε) that shares no code and no method with sordino's accountants.

With L the total privacy loss under P and M(s) = E_P[e^{sL}] = Π_i M_i(s)^{n_i}, the hockey-stick divergence is a contour
integral over any vertical line Re s = θ > 0, because ∫₀^∞ e^{−sx}(1 − e^{−x}) dx = 1/(s(s+1)):

    δ(ε) = E_P[(1 − e^{ε−L})₊] = (1/2π) ∫ M(θ+iω) e^{−(θ+iω)ε} / ((θ+iω)(θ+iω+1)) dω

There is no lattice of losses, no rounding of losses and no composition by transforms: every M_i comes from a closed
form, from a finite sum, or from the trapezoid rule over the output of one release, which converges exponentially for
normal densities.

Errors. The trapezoid rule over ω with spacing 2π/W gives Σ_k δ(ε + kW) e^{θkW}. Terms with k < 0 are at most
e^{−θ|k|W}; terms with k > 0 are bounded by Chernoff's inequality at steeper tilts. What is cut off beyond the largest
ω is at most the largest |M| there divided by π·ω. Where a release has atoms (answers, Laplace noise), |M| can come
back after it was small, so it is bounded by the factor e^{−μ²ω²/2} of the normal noise in the composition, which is a
proof, and there has to be some. Where every release has a smooth density, |M| falls, and the largest one seen last is
taken: the one step without a proof. All of these are added up in `Answer.error`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.special import erfc

_REACH = 11.0  # standard deviations of a normal density that a quadrature covers around its peak
_POINTS = 40_000  # largest number of points of one quadrature
_CHUNK = 96  # frequencies at a time
_MOST_FREQUENCIES = 700
_FAINT = 1e-11  # of the integrand at ω = 0, at which the integral is cut off
_EXPONENT = 36.0  # e-folds below δ at which periodic copies are


@dataclass(frozen=True)
class Answer:
    """δ at one ε, and by how much it may be off."""

    delta: float
    error: float


class Release:
    """One release: the logarithm of E_P[e^{sL}] for complex s, when the record is removed or added; L is finite."""

    infinite = 0.0
    """P-mass of L = ∞ (the same in both directions)."""
    smooth = True
    """Whether the loss has a smooth density, without atoms."""

    def log_moment(self, s: np.ndarray, add: bool) -> np.ndarray:
        raise NotImplementedError


@dataclass(frozen=True)
class Normal(Release):
    """N(μ, 1) against N(0, 1): L ~ N(μ²/2, μ²), so log M = s(s+1)μ²/2."""

    mu: float

    def log_moment(self, s, add):
        return s * (s + 1) * self.mu**2 / 2


@dataclass(frozen=True)
class Atoms(Release):
    """Finitely many outputs with their probabilities P and Q, all positive."""

    smooth = False
    p: tuple[float, ...]
    q: tuple[float, ...]

    def log_moment(self, s, add):
        p, q = np.array(self.p), np.array(self.q)
        loss = np.log(p) - np.log(q)
        exponent = np.log(q)[:, None] - s * loss[:, None] if add else np.log(p)[:, None] + s * loss[:, None]
        return log_sum(exponent)


@dataclass(frozen=True)
class LaplaceNoise(Release):
    """Lap(1/e) moved by one: L = e(|x| − |x − 1|); P has atoms at ±e and an exponential density between."""

    smooth = False
    epsilon: float

    def log_moment(self, s, add):
        e = self.epsilon
        # P[L = e] = 1/2, P[L = −e] = e^{−e}/2, density e^{(l − e)/2}/4 between: ∫ e^{sl} e^{(l−e)/2}/4 dl
        a = s + 0.5
        top = e * (a - 0.5)
        inside = np.exp(-0.5 * e) * (np.exp(e * a - top) - np.exp(-e * a - top)) / (4 * a)
        return top + np.log(0.5 * np.exp(s * e - top) + 0.5 * np.exp(-e - s * e - top) + inside)


@dataclass(frozen=True)
class Ratio(Release):
    """A release with output z ~ N(0, 1) under Q and log dP/dQ = `log_ratio(z)`, an analytic function that rises with z.

    `slope` bounds its derivative; `peak(θ)` says where the integrand is large when the record is removed.
    """

    log_ratio: Callable[[np.ndarray], np.ndarray]
    slope: float
    width: float  # distance of the nearest singularity from the real line
    shift: float  # the largest mean of a component of P

    def log_moment(self, s, add):
        theta, fastest = float(np.max(s.real)), float(np.max(np.abs(s.imag))) + 1.0
        power = theta if add else theta + 1
        low, high = -_REACH - (power * self.slope if add else 0.0), _REACH + (0.0 if add else power * self.shift)
        step = min(0.1, 0.25 * self.width, 1.2 / (fastest * self.slope))
        z = np.linspace(low, high, min(_POINTS, max(400, math.ceil((high - low) / step))))
        loss = self.log_ratio(z)
        base = -(z**2) / 2 + math.log((z[1] - z[0]) / math.sqrt(2 * math.pi))
        result = np.empty(len(s), dtype=complex)
        block = max(1, 2_000_000 // len(z))
        for start in range(0, len(s), block):
            some = s[start : start + block]
            exponent = base[:, None] + (-some if add else some + 1) * loss[:, None]
            result[start : start + block] = log_sum(exponent)
        return result


def log_sum(exponent: np.ndarray) -> np.ndarray:
    """Returns the logarithm of the sum of exponentials down the first axis."""
    top = exponent.real.max(axis=0)
    return top + np.log(np.exp(exponent - top).sum(axis=0) + 0j)


def sampled_normal(rate: float, mu: float) -> Ratio:
    """Returns a Poisson-sampled Gaussian: dP/dQ = 1 − q + q e^{μz − μ²/2}."""

    def log_ratio(z):
        return np.logaddexp(math.log1p(-rate), math.log(rate) + mu * z - mu**2 / 2)

    return Ratio(log_ratio, mu, math.pi / mu, mu)


def sampled_group(rate: float, mu: float, size: int) -> Ratio:
    """Returns a group of records under Poisson sampling: the number of them in the batch is binomial."""
    logs = [math.log(math.comb(size, i)) + i * math.log(rate) + (size - i) * math.log1p(-rate) for i in range(size + 1)]

    def log_ratio(z):
        return np.logaddexp.reduce([log + i * mu * z - (i * mu) ** 2 / 2 for i, log in enumerate(logs)])

    return Ratio(log_ratio, size * mu, math.pi / (size * mu), size * mu)


@dataclass(frozen=True)
class Replaced(Release):
    """(1−q)N(0)+qN(μ) against (1−q)N(0)+qN(−μ), by quadrature over the output."""

    rate: float
    mu: float

    def log_moment(self, s, add):
        theta, fastest = float(np.max(s.real)), float(np.max(np.abs(s.imag))) + 1.0
        low, high = -_REACH - self.mu, _REACH + (2 * theta + 1) * self.mu
        step = min(0.1, 0.5 / self.mu, 0.6 / (fastest * self.mu))
        z = np.linspace(low, high, min(_POINTS, max(400, math.ceil((high - low) / step))))
        up = np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + self.mu * z - self.mu**2 / 2)
        down = np.logaddexp(math.log1p(-self.rate), math.log(self.rate) - self.mu * z - self.mu**2 / 2)
        base = -(z**2) / 2 + math.log((z[1] - z[0]) / math.sqrt(2 * math.pi)) + up
        return np.concatenate(
            [log_sum(base[:, None] + part * (up - down)[:, None]) for part in np.array_split(s, max(1, len(s) // 32))]
        )


@dataclass(frozen=True)
class SampledLaplace(Release):
    """A Poisson-sampled Laplace release: atoms at both ends, Gauss–Legendre quadrature between."""

    smooth = False
    rate: float
    epsilon: float

    def log_moment(self, s, add):
        q, e = self.rate, self.epsilon
        fastest = float(np.max(np.abs(s.imag))) * e + abs(float(np.max(s.real))) * e + e
        nodes, weights = np.polynomial.legendre.leggauss(int(min(1500, 40 + 2 * fastest)))
        x = (nodes + 1) / 2
        base = np.log(weights / 2 * 0.5 * e) - e * x  # Q-density of the output between 0 and 1
        base = np.concatenate((base, [math.log(0.5), math.log(0.5) - e]))  # x < 0 and x > 1
        ratio = np.concatenate((e * (2 * x - 1), [-e, e]))
        loss = np.logaddexp(math.log1p(-q), math.log(q) + ratio)
        return np.concatenate(
            [
                log_sum(base[:, None] + (-part if add else part + 1) * loss[:, None])
                for part in np.array_split(s, max(1, len(s) // 64))
            ]
        )


@dataclass(frozen=True)
class Chosen(Release):
    """One of several releases by a public draw: moments are averaged."""

    weights: tuple[float, ...]
    releases: tuple[Release, ...]

    def log_moment(self, s, add):
        parts = [math.log(w) + one.log_moment(s, add) for w, one in zip(self.weights, self.releases, strict=True)]
        return log_sum(np.array(parts))


@dataclass(frozen=True)
class Allocated(Release):
    """One pass of balls in two or three bins with normal noise: a product quadrature over all outputs."""

    bins: int
    mu: float

    def log_moment(self, s, add):
        theta = float(np.max(s.real))
        count = 220 if self.bins == 2 else 70
        power = theta if add else theta + 1
        z = np.linspace(
            -8.5 - (power * self.mu / self.bins if add else 0.0), 8.5 + (0.0 if add else power * self.mu), count
        )
        base = -(z**2) / 2 + math.log((z[1] - z[0]) / math.sqrt(2 * math.pi))
        one = self.mu * z - self.mu**2 / 2
        total, ratio = base, one
        for _ in range(self.bins - 1):
            total, ratio = np.add.outer(total, base).ravel(), np.logaddexp.outer(ratio, one).ravel()
        loss = ratio - math.log(self.bins)
        use = total > total.max() - 75 - 2 * power * self.mu
        total, loss = total[use], loss[use]
        return np.concatenate(
            [
                log_sum(total[:, None] + (-part if add else part + 1) * loss[:, None])
                for part in np.array_split(s, max(1, len(s) * len(loss) // 2_000_000))
            ]
        )


def discrete_normal(sigma: float, shift: int = 1) -> Atoms:
    """Returns discrete Gaussian noise on an integer that one record moves by `shift`."""
    reach = math.ceil(16 * sigma) + shift
    x = np.arange(-reach, reach + shift + 1)
    q, p = np.exp(-(x**2) / (2 * sigma**2)), np.exp(-((x - shift) ** 2) / (2 * sigma**2))
    keep = (p > 1e-300) & (q > 1e-300)
    return Atoms(tuple(p[keep] / p.sum()), tuple(q[keep] / q.sum()))


def response(flip: float, buckets: int) -> Atoms:
    """Returns randomised response among `buckets` answers."""
    other = flip / buckets
    true = 1 - flip + other
    return Atoms((true, other, *((other,) * (buckets - 2))), (other, true, *((other,) * (buckets - 2))))


def sampled_atoms(rate: float, atoms: Atoms) -> Atoms:
    """Returns finitely many outputs after Poisson sampling."""
    p, q = np.array(atoms.p), np.array(atoms.q)
    return Atoms(tuple((1 - rate) * q + rate * p), tuple(q))


def allocated_atoms(bins: int, atoms: Atoms) -> Atoms:
    """Returns one pass of balls in bins over releases with few outputs, all outputs enumerated."""
    p, q = [], []
    for outputs in product(range(len(atoms.p)), repeat=bins):
        without = math.prod(atoms.q[o] for o in outputs)
        q.append(without)
        p.append(without * math.fsum(atoms.p[o] / atoms.q[o] for o in outputs) / bins)
    return Atoms(tuple(p), tuple(q))


Parts = Sequence[tuple[Release, int]]


class Composition:
    """Several releases, each so many times, in one direction."""

    def __init__(self, parts: Parts, add: bool) -> None:
        self.parts, self.add = list(parts), add
        self.finite = math.exp(math.fsum(n * math.log1p(-one.infinite) for one, n in self.parts))

    def log_moment(self, s: np.ndarray) -> np.ndarray:
        return sum((n * one.log_moment(s, self.add) for one, n in self.parts), np.zeros(len(s), dtype=complex))

    def real(self, theta: float) -> float:
        """Returns K(θ) = log M(θ)."""
        return float(self.log_moment(np.array([theta + 0j]))[0].real)

    def tilt(self, epsilon: float) -> float:
        """Returns about the θ that minimises K(θ) − θε, between 1e-3 and 1e3 over the loss's spread."""
        h = 1e-3
        spread = math.sqrt(max((self.real(h) + self.real(-h)) / h**2, 1e-16))
        low, high = math.log(0.05 / spread), math.log(400.0 / spread)
        ratio = (math.sqrt(5) - 1) / 2
        value = lambda x: self.real(math.exp(x)) - math.exp(x) * epsilon  # noqa: E731
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        at_a, at_b = value(a), value(b)
        while high - low > 0.05:
            if at_a < at_b:
                high, b, at_b = b, a, at_a
                a = high - ratio * (high - low)
                at_a = value(a)
            else:
                low, a, at_a = a, b, at_b
                b = low + ratio * (high - low)
                at_b = value(b)
        return math.exp(0.5 * (low + high))

    def delta(self, epsilon: float) -> Answer:
        """Returns δ at ε by the contour integral."""
        theta = self.tilt(epsilon)
        scale = self.real(theta) - theta * epsilon
        # The period: copies below are at most e^{−θW}, copies above are bounded at steeper tilts.
        period = (_EXPONENT - min(scale, 0.0)) / theta
        steeper = [theta * f for f in (1.3, 1.7, 2.5, 4.0)]
        while True:
            above = min(self.real(t) - t * epsilon - (t - theta) * period for t in steeper)
            copies = 1.1 * (math.exp(-theta * period) + math.exp(min(above, 0.0)))
            if copies < 1e-9 * math.exp(scale) or period > 4e3 / theta:
                break
            period *= 1.5
        step = 2 * math.pi / period
        total, first, loudest, count = 0.0, None, math.inf, 0
        smooth = all(one.smooth for one, _ in self.parts)
        normal = math.fsum(n * one.mu**2 for one, n in self.parts if isinstance(one, Normal))
        while count < (_MOST_FREQUENCIES if smooth else 4 * _MOST_FREQUENCIES):
            omega = step * np.arange(count, count + _CHUNK)
            s = theta + 1j * omega
            moment = np.exp(self.log_moment(s) - s * epsilon - scale)
            value = (moment / (s * (s + 1))).real
            first = float(value[0]) if first is None else first
            total += float(value.sum()) - (0.5 * float(value[0]) if count == 0 else 0.0)
            count += _CHUNK
            # |M| beyond: what the normal noise leaves of it, or the largest of the last ones where losses have densities
            loudest = math.exp(-normal * (step * count) ** 2 / 2)
            if smooth:
                loudest = min(loudest, float(np.abs(moment).max()))
            if loudest / (step * count) < _FAINT * first:
                break
        rest = loudest / (math.pi * step * count)
        delta = total * step / math.pi * math.exp(scale)
        error = copies + rest * math.exp(scale) + 1e-10 * abs(delta) + 1e-13 * math.exp(scale)
        lost = 1 - self.finite
        return Answer(lost + self.finite * delta, error)


def delta_of(parts: Parts, epsilon: float) -> Answer:
    """Returns δ at ε of a composition, the larger of both directions."""
    both = [Composition(parts, add).delta(epsilon) for add in (False, True)]
    return Answer(max(one.delta for one in both), max(one.error for one in both))


def exact_lattice_delta(parts: Sequence[tuple[Atoms, int]], epsilon: float) -> Answer:
    """Returns δ of releases with few outputs by enumerating all counts of outputs, in both directions."""
    log_p, log_q = np.zeros(1), np.zeros(1)
    for atoms, count in parts:
        more_p, more_q = [], []
        for counts in _counts(count, len(atoms.p)):
            choose = math.lgamma(count + 1) - math.fsum(math.lgamma(c + 1) for c in counts)
            more_p.append(choose + math.fsum(c * math.log(x) for c, x in zip(counts, atoms.p, strict=True)))
            more_q.append(choose + math.fsum(c * math.log(x) for c, x in zip(counts, atoms.q, strict=True)))
        log_p, log_q = np.add.outer(log_p, more_p).ravel(), np.add.outer(log_q, more_q).ravel()
    best = 0.0
    for top, bottom in ((log_p, log_q), (log_q, log_p)):
        loss = top - bottom
        above = loss > epsilon
        best = max(best, math.fsum((np.exp(top[above]) * -np.expm1(epsilon - loss[above])).tolist()))
    return Answer(best, 1e-12 * best)


def _counts(total: int, kinds: int):
    if kinds == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _counts(total - first, kinds - 1):
            yield (first, *rest)


def many_bins_delta(bins: int, mu: float, epsilon: float, cells: int = 1 << 19) -> tuple[Answer, Answer]:
    """Returns δ of one pass of many bins from below and above: ratios rounded down and up, one plain transform.

    δ for removing rises with S and δ for adding falls, so sums of ratios rounded down and up enclose both. Ratios
    beyond the lattice are left out below and counted as a total loss above.
    """
    spread = math.sqrt(math.expm1(mu**2))
    top = bins + 14 * spread * math.sqrt(bins) + math.exp(min(6.5 * mu, 30.0))
    step = top / cells
    edges = np.arange(cells + 1) * step
    with np.errstate(divide="ignore"):
        z = np.log(edges) / mu + mu / 2
    below = _normal_distribution(z)
    mass = np.diff(below)
    beyond_q, beyond_p = 1 - below[-1], 1 - float(_normal_distribution(z[-1:] - mu)[0])
    spectrum = np.fft.rfft(mass, 2 * cells)
    law = np.maximum(np.fft.irfft(spectrum**bins, 2 * cells), 0.0)
    noise = 1e-16 * 60 * bins * 2 * cells * float(law.max())
    index = np.arange(2 * cells)
    results = []
    for shift, sign in ((0, -1.0), (bins, 1.0)):
        s = (index + shift) * step / bins
        removing = float(law @ np.maximum(s - math.exp(epsilon), 0.0))
        other = (index + (bins - shift)) * step / bins
        adding = float(law @ np.maximum(1 - math.exp(epsilon) * other, 0.0))
        lost = bins * beyond_q + beyond_p if sign > 0 else 0.0
        results.append(Answer(max(removing, adding) + lost, noise * (1 + 10 * math.exp(epsilon))))
    return results[0], results[1]


def _normal_distribution(z: np.ndarray) -> np.ndarray:
    return 0.5 * erfc(-z / math.sqrt(2))
