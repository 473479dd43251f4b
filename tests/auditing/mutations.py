"""Mistakes, each a few characters in one file of the package, of the kind that libraries have shipped.

The three marked SURVIVED passed every other test of the package when they were thought of.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """`old` in `file` becomes `new`."""

    name: str
    file: str
    old: str
    new: str


RELEASE, CLIPPING, POISSON = "release/release.py", "clipping/clipping_rule.py", "sampling/poisson.py"
SCALE = "scale = _noise_scale(noise, bound, is_unproven=isinstance(sensitivity, Unproven)) * (1 + slack)"
TIMES = "    return noise.multiplier * bound"
TAKE = "            total.add_chunk(part.weighted_sum(weights, into=total.next_buffer()))"
NORMS = "    norms = part.norms()\n"
ADD = "rng.add_normal_([tensor for tensor in value.values() if tensor.numel()], scale, factor)"
DIVIDE = "write_gradients(release.value, lot.expected_batch / release.divided_by)"
LOADED = """        if replay is None or streams is None:
            self.renew(draws=True)
        else:
            self._root, self._noise, self._forward = streams
            self._cipher_was_chosen = True  # by the run whose noise is used again
            if not replay.entered:
"""
REPLAYED = """        if replay is None:
            self._root, self._noise, self._forward = self._noise_key().streams_at(
                self._noise_key().decrypt(state["encrypted"])["counters"]
            )
        else:
            self._root, self._noise, self._forward = streams
            self._cipher_was_chosen = True  # by the run whose noise is used again
            if not replay.entered:
"""
AFTER_SUM = """            summed = part.weighted_sum(torch.ones_like(weights))
            long = sum(float(t.double().square().sum()) for t in summed.values()) ** 0.5
            reach = rule.sensitivity.l2 * len(weights)
            total.add_chunk({k: t * min(1.0, reach / (long + 1e-30)) for k, t in summed.items()})"""
STALE = """    norms = part.norms()
    kept = sum_clipped.__dict__.get("kept")
    sum_clipped.__dict__["kept"] = norms
    norms = kept if kept is not None and kept.squared.shape == norms.squared.shape else norms
"""

KNOWN = "        return self._norms\n"
NO_BIAS = """        some = torch.arange(len(self._names)) < len(self._names) - 1
        return Norms(self._norms.squared * some, self._names)
"""

SURVIVED = ("noise 0.1 % short at the release", "a choice at twice its ε", "a clip 0.05 % long")

MUTATIONS = (
    Mutation(SURVIVED[0], RELEASE, SCALE, SCALE + " * 0.999"),
    Mutation(SURVIVED[1], RELEASE, "bare * (epsilon / (2 * sensitivity))", "bare * (epsilon / sensitivity)"),
    Mutation(SURVIVED[2], CLIPPING, TAKE, TAKE.replace("(weights,", "(weights * 1.0005,")),
    Mutation("a place chosen at twice its ε", RELEASE, "steps.heights * (epsilon / (2 * sensitivity))",
             "steps.heights * (epsilon / sensitivity)"),
    Mutation("no noise", RELEASE, "noise.add_(summed, scale, rng, 1 / divide_by)", "divide_(summed, divide_by)"),
    Mutation("half the noise", RELEASE, TIMES, TIMES + " / 2"),
    Mutation("the bound forgotten in the noise", RELEASE, TIMES, "    return noise.multiplier"),
    Mutation("every rank adds all the noise (4 ranks)", RELEASE, TIMES, TIMES + " * 2"),
    Mutation("the slack of rounding left out", RELEASE, " * (1 + slack)", ""),
    Mutation("one tensor without noise", "release/noise.py", ADD, ADD.replace("], scale", "][:-1], scale")),
    Mutation("noise at other coordinates", "release/noise.py", ADD, ADD.replace("], scale", "][::-1], scale")),
    Mutation("the same noise every step", "rng/streams.py", "return self._stream_of(self.counter - 1)",
             "return self._stream_of(0)"),
    Mutation("the same key in every run", "rng/streams.py", "return Rng(secrets.token_bytes(KEY_BYTES))",
             "return Rng(bytes(KEY_BYTES))"),
    Mutation("noise reused after a resume", "private.py", LOADED, REPLAYED),
    Mutation("noise charged at twice its multiplier", "release/noise.py", "return events.Gaussian(self.multiplier)",
             "return events.Gaussian(2 * self.multiplier)"),
    Mutation("an empty lot is not noised", RELEASE, "    " + SCALE,
             "    if not any(bool(t.any()) for t in bare.values()):\n        return Release(dict(bare), event, divide_by)\n"
             "    " + SCALE),
    Mutation("layers' noise in other units", RELEASE,
             "return Release(_divide_by_factors(noised, factors), event, divide_by)",
             "return Release(noised, event, divide_by)"),
    Mutation("clip after the sum", CLIPPING, TAKE, AFTER_SUM),
    Mutation("no clip", CLIPPING, TAKE, TAKE.replace("(weights,", "(torch.ones_like(weights),")),
    Mutation("one factor for the whole lot", CLIPPING, TAKE,
             "            weights = weights.amin().expand_as(weights).clone() if len(weights) else weights\n" + TAKE),
    Mutation("a bias left out of the norm", "per_sample/engine/batch_result.py", KNOWN, NO_BIAS),
    Mutation("stale norms", CLIPPING, NORMS, STALE),
    Mutation("half-precision norms", CLIPPING, NORMS,
             NORMS + "    norms = Norms(norms.squared.bfloat16().float(), norms.names, norms.estimate)\n"),
    Mutation("a padding record of weight 1e-8", CLIPPING, TAKE, TAKE.replace("(weights,", "(weights + 1e-8,")),
    Mutation("a record that is not finite is kept", CLIPPING, "weights = torch.where(finite(), weights, 0)",
             "weights = torch.where(finite(), weights, 1)"),
    Mutation("a record twice in its lot", "lots/lot.py", "Batches(draw.indices, chunk",
             "Batches(np.append(draw.indices, draw.indices[:1]), chunk"),
    Mutation("chunks overwritten, not added", "release/vectors.py", "self._second = chunk",
             "self._first = chunk"),
    Mutation("divided by the lot's own size", "private.py", DIVIDE,
             "write_gradients(release.value, max(1, len(self._last_records)) / release.divided_by)"),
    Mutation("divided by twice the public number", "private.py", DIVIDE,
             DIVIDE.replace("(release.value, ", "(release.value, 2 * ")),
    Mutation("the last record is never drawn", POISSON, "positions[positions < n]", "positions[positions < n - 1]"),
    Mutation("the first record is never drawn", POISSON, "    last = -1.0", "    last = 0.0"),
    Mutation("every lot drawn twice", POISSON, "rng.child(k)", "rng.child(k // 2)"),
    Mutation("a draw charged at half its rate", POISSON, "partial(events.Poisson, self.rate)",
             "partial(events.Poisson, self.rate / 2)"),
    Mutation("the ledger one short", "ledger/ledger.py", "Entry(entry.event, last.count + entry.count,",
             "Entry(entry.event, last.count + entry.count - (last.count == 2),"),
    Mutation("a lot that was only drawn is free", "ledger/ledger.py", "events = self.released or [self.planned()]",
             "events = self.released"),
    Mutation("two phases charged as one", "private.py", "phase = DrawPhase(self._phases_begun, source, steps=steps)",
             "phase = DrawPhase(0, source, steps=steps)"),
    Mutation("ε told a tenth too small", "ledger/claims.py",
             "return Guarantee(max(0.0, epsilon), delta", "return Guarantee(max(0.0, 0.9 * epsilon), delta"),
)  # fmt: skip
