"""What looks for errors in correlated noise and its draws. Each check passes on the real code, and fails on a mutation."""

import copy
import math

import numpy as np
import torch
from scipy import stats

import sordino as sd
from sordino.matrix_factorization import participation
from sordino.matrix_factorization.strategies import Strategy
from sordino.matrix_factorization.toeplitz import toeplitz_matrix
from sordino.release.release import tap_releases
from sordino.rng.phase_noise import PhaseNoise
from sordino.rng.streams import Rng
from tests.correlated.noise_runs import create_run, decorrelate, records, release_all
from tests.untested import untested

STEPS = 10


def noise_of(strategy: Strategy, *, leave_out=(), width=4000, steps=STEPS) -> np.ndarray:
    """Returns what a run of a fixed order releases of records whose gradients are zero."""
    private, model = create_run(strategy, width=width)
    lots = private.draws(records(20, width), sd.FixedOrder(5), steps=steps, expected_batch=1.0)
    return release_all(private, model, lots, leave_out)


def check_covariance(strategy: Strategy) -> None:
    """C W must be independent N(0, 1) in every step and coordinate; false alarms once in 10⁶ per statistic."""
    independent = decorrelate(noise_of(strategy), strategy)
    steps, width = independent.shape
    scale, error = float(np.sqrt((independent**2).mean())), 5 / math.sqrt(2 * steps * width)
    assert 1 - error <= scale <= 1.006 + error  # half a percent is added for rounding
    assert stats.kstest((independent / scale).ravel(), "norm").pvalue > 1e-6
    assert np.abs(np.corrcoef(independent) - np.eye(steps)).max() < 6 / math.sqrt(width)


def check_parts(strategy: Strategy) -> None:
    """The noise at some coordinates must have the bits of the noise at all of them, because ranks divide it."""
    noise, width, steps = sd.Correlated(1.0, strategy), 70_001, 5

    def make(stretches, rank):
        rng = Rng.from_seed(3)
        rng.phase = PhaseNoise(Rng.from_seed(4), steps)
        rows = []
        for step in range(steps):
            rng.phase.draw_step(step_of_rank(step, rank))
            rows.append(noise.values_at(width, stretches, 2.0, rng, torch.float32))
        return torch.stack(rows)

    whole = make([(0, width)], 0)
    for start, count in ((0, 3), (17, 40_000), (33_333, width - 33_333), (width - 1, 1)):
        assert torch.equal(make([(start, count)], 1), whole[:, start : start + count])
    assert torch.equal(make([(5, 10), (100, 7)], 1), torch.cat([whole[:, 5:15], whole[:, 100:107]], dim=1))


def step_of_rank(step: int, rank: int) -> int:
    """Returns the step at which a rank is when the run is at `step`: the same on all ranks."""
    return step


def check_resume(strategy: Strategy, folder) -> None:
    """A replayed run must go on with the noise that the run it replays had."""
    data = records(20)
    private, model = create_run(strategy)
    private.save_secret(folder)
    rows, state = [], None
    for step, lot in enumerate(private.draws(data, sd.FixedOrder(5), steps=STEPS, expected_batch=1.0)):
        private.backward(lot)
        rows.append(model.weight.grad.clone())
        if step == 5:
            state = copy.deepcopy(private.state_dict())
    assert set(state["whole_phase"]) == {"steps", "scale", "layout"}  # no vector of the noise, and no key
    resumed, model = create_run(strategy, seed=None)
    resumed.load_state_dict(state, replay=sd.Replay("the process was stopped", secret=folder))
    for step, lot in enumerate(resumed.draws(data, sd.FixedOrder(5), steps=STEPS - 6, expected_batch=1.0), 6):
        resumed.backward(lot)
        assert torch.equal(model.weight.grad, rows[step])
    assert resumed.event == private.event


def check_patterns(sampler, separation: int, *, steps: int = 12, records_drawn: int = 30) -> None:
    """No record may come back within `separation` steps."""
    for seed in range(20):
        last = np.full(records_drawn, -separation)
        draws = sampler.draws(records_drawn, Rng.from_seed(seed), 0)
        for step in range(steps):
            drawn = next(draws).indices
            assert (step - last[drawn] >= separation).all()
            last[drawn] = step


class CoinsOfOthers(Rng):
    """A stream that gives a coin to record `gone` too, though it is not there: the others keep theirs."""

    def __init__(self, rng: Rng, n: int, gone: int) -> None:
        super().__init__(rng._key, rng.counter)
        self.n, self.gone = n, gone

    def child(self, *labels):
        return CoinsOfOthers(super().child(*labels), self.n, self.gone)

    def integers(self, n, high):
        made = super().integers(self.n, high)
        return np.delete(made, self.gone) if n == self.n - 1 else made


def check_groups_are_own(groups: int = 4) -> None:
    """A record that is not there must leave all others in their groups. At rate 1 a step draws the whole group."""
    n, sampler = 24, sd.CyclicPoisson(1.0, groups)
    for seed in range(10):
        for gone in (0, 7, n - 1):
            with_it = sampler.draws(n, Rng.from_seed(seed), 0)
            without = sampler.draws(n - 1, CoinsOfOthers(Rng.from_seed(seed), n, gone), 0)
            for _ in range(groups):
                drawn = set(next(with_it).indices.tolist()) - {gone}
                others = {int(i) + (i >= gone) for i in next(without).indices}
                assert drawn == others


def check_moves(strategy: Strategy, sampler, *, steps: int = 12) -> float:
    """Returns the largest move of C G by one record over what was declared; raises if it is more.

    Two real runs, one of which has the record's gradient replaced by nothing, are tapped before noise. The record pushes
    with its whole clipped length in one direction whenever it is drawn, which is the worst that a record can do where
    CᵀC ≥ 0. The declared bound follows from the event of the run: sens for a fixed order; for cyclic draws the norms of
    the columns in which the record took part, which share no row.
    """
    n, worst = 6, 0.0
    encoder = toeplitz_matrix(strategy.encoder(steps), steps)
    for seed in range(2):
        for gone in (0, n - 1):
            sums, drawn_in = [], []
            for present in (1.0, 0.0):
                x = torch.zeros(n, 1)
                x[gone] = 1e6 * present
                model = torch.nn.Linear(1, 1, bias=False)
                query = sd.NoisySum(sd.Flat(1.0), sd.Correlated(1.0, strategy))
                seen = []
                data = torch.utils.data.TensorDataset(x, torch.arange(n))
                loss = lambda m, x, _: m(x).sum(1)  # noqa: E731
                private = sd.Private(model, loss, query, seed=seed)

                def tap(value, sensitivity, noise, seen=seen):
                    seen.append(float(next(iter(value.values())).double()))
                    return {name: tensor.clone() for name, tensor in value.items()}

                with tap_releases(tap), untested():
                    for lot in private.draws(data, sampler, steps=steps, expected_batch=1.0):
                        private.backward(lot)
                sums.append(np.array(seen))
            moved = sums[0] - sums[1]
            drawn_in = np.flatnonzero(moved)
            if isinstance(sampler, sd.FixedOrder):
                separation = -(-n // sampler.batch_size)
                declared = participation.toeplitz_sensitivity(strategy.encoder(steps), steps, separation)
            else:
                declared = math.sqrt(sum((encoder[:, j] ** 2).sum() for j in drawn_in))
            if declared:
                worst = max(worst, float(np.linalg.norm(encoder @ moved)) / declared)
    assert worst <= 1 + 1e-6, worst
    return worst
