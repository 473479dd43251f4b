"""The compiled correlated noise: the bits of the slow path, whatever is kept and however coordinates are divided."""

import numpy as np
import pytest
import torch

import sordino as sd
from sordino.kernels import build, noise_kernel, phase_noise_kernel
from sordino.kernels.phase_noise_kernel import PhaseNoiseKernel
from sordino.release import compiled_combinations
from sordino.release.compiled_combinations import CompiledCombination, gives_same_noise
from sordino.release.noise_combinations import create_plain_combination
from sordino.rng import normals
from sordino.rng.phase_noise import PhaseNoise
from sordino.rng.streams import Rng
from tests.kernels.libraries import levels, library

compiled = levels(build.PHASE_NOISE, phase_noise_kernel.FUNCTIONS, PhaseNoiseKernel, noise_kernel.LEVELS)

STRATEGIES = [
    sd.Banded(1),
    sd.Banded(2),
    sd.Banded(7),
    sd.Banded(3, (1.0, 0.6, 0.2)),
    sd.Banded(40),
    sd.InverseBanded(1),
    sd.InverseBanded(5),
    sd.InverseBanded(40),
    sd.Buffered((0.9, 0.5), (0.2, 0.3)),
]
STEPS = 21
BLOCK = normals.BLOCK


def phase(steps=STEPS):
    return PhaseNoise(Rng.from_seed(5), steps)


def all_noise(strategy, total, stretches, steps=STEPS):
    """Returns the noise of all steps by the slow path."""
    slow = create_plain_combination(strategy, phase(steps), total, stretches, torch.float32)
    return torch.stack([slow.noise_of(step) for step in range(steps)])


def best_kernel():
    found = library(build.PHASE_NOISE, phase_noise_kernel.FUNCTIONS)
    return PhaseNoiseKernel(found, int(found.sordino_level(noise_kernel.BEST)))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_every_step_has_the_bits_of_the_slow_path(compiled, strategy):
    total, stretches = 3001, [(0, 3001)]
    fast = CompiledCombination(compiled, strategy, phase(), total, stretches)
    wanted = all_noise(strategy, total, stretches)
    for step in range(STEPS):
        assert torch.equal(fast.noise_of(step), wanted[step]), step


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 5, 8, 100])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_what_is_kept_in_memory_does_not_change_the_bits(strategy, kept):
    """Lots are left out on the way, as a resumed run leaves out those before it."""
    total, stretches, kernel = 5000, [(0, 5000)], best_kernel()
    fast = CompiledCombination(kernel, strategy, phase(), total, stretches, kept)
    wanted = all_noise(strategy, total, stretches)
    for step in (2, 3, 4, 11, 12, 20):
        assert torch.equal(fast.noise_of(step), wanted[step]), step
    held = fast._rows.nbytes + (0 if fast._buffers is None else fast._buffers.nbytes)
    assert held <= kept * 4 * total


@pytest.mark.parametrize("strategy", [sd.Banded(4), sd.InverseBanded(4), sd.Buffered((0.9,), (0.4,))], ids=str)
@pytest.mark.parametrize("total", [1, 2, 7, 4999, BLOCK, BLOCK + 1, 2 * BLOCK + 4001])
def test_a_part_of_the_coordinates_has_the_bits_of_the_whole(strategy, total):
    """Cuts at and around the edges of blocks and of their halves, and shares of 2 and 3 ranks."""
    steps, kernel = 6, best_kernel()
    whole = all_noise(strategy, total, [(0, total)], steps)
    half = (min(total, BLOCK) + 1) // 2
    edges = {0, 1, half - 1, half, half + 1, BLOCK, BLOCK + 1, total // 2, total // 3, total - 1, total}
    inside = sorted(edge for edge in edges if 0 <= edge <= total)
    pairs = [(a, b - a) for a in inside for b in inside if a < b]
    for start, count in pairs[:: 1 + len(pairs) // 12]:
        fast = CompiledCombination(kernel, strategy, phase(steps), total, [(start, count)])
        for step in (0, 1, 4, 5):
            assert torch.equal(fast.noise_of(step), whole[step, start : start + count]), (start, count, step)
    if total > 4000:
        stretches = [(5, 10), (2000, 1500)]
        fast = CompiledCombination(kernel, strategy, phase(steps), total, stretches)
        for step in range(steps):
            assert torch.equal(fast.noise_of(step), torch.cat([whole[step, 5:15], whole[step, 2000:3500]]))


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_the_bits(threads):
    total, steps, before = 300_001, 12, torch.get_num_threads()
    wanted = all_noise(sd.Banded(4), total, [(0, total)], steps)
    try:
        torch.set_num_threads(threads)
        fast = CompiledCombination(best_kernel(), sd.Banded(4), phase(steps), total, [(0, total)])
        sums = [torch.ones(100_000), torch.ones(total - 100_000)]
        for step in range(steps):
            fast.add_noise_(sums, step, 2.0, 1.0)
    finally:
        torch.set_num_threads(before)
    slow = torch.ones(total)
    for noise in wanted:
        slow.add_(noise * 2.0)
    assert torch.equal(torch.cat(sums), slow)


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "float64"])
def test_a_run_releases_the_same_bits_with_and_without_the_kernel(layout, monkeypatch):
    """Weights that are not contiguous, or wider, take the slow path, of which the bits are compared too."""

    def released(kernel):
        monkeypatch.setattr(compiled_combinations, "load_phase_noise_kernel", lambda: kernel)
        model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.Flatten(), torch.nn.Linear(3 * 36, 2))
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        if layout == "channels last":
            model = model.to(memory_format=torch.channels_last)
        data = torch.randn(20, 2, 8, 8, generator=torch.Generator().manual_seed(0))
        if layout == "float64":
            model, data = model.double(), data.double()
        query = sd.NoisySum(sd.Flat(1.0), sd.Correlated(0.7, sd.Banded(3)))
        private = sd.Private(model, lambda m, x: m(x).square().sum(1), query, seed=3)
        rows = []
        dataset = torch.utils.data.TensorDataset(data)
        for lot in private.draws(dataset, sd.FixedOrder(5), steps=8, expected_batch=5.0):
            private.backward(lot)
            rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        return torch.stack(rows)

    assert torch.equal(released(best_kernel()), released(None))


def test_a_wrong_kernel_is_not_trusted(compiled):
    class Wrong(PhaseNoiseKernel):
        def advance(self, key, combination, *others):
            raised = phase_noise_kernel.CombinationRecipe(
                combination.kind, combination.coefficients * np.float32(1 + 2e-7), combination.decays
            )
            super().advance(key, raised, *others)

    class WrongSum(PhaseNoiseKernel):
        def add_scaled(self, noise, scale, *others):
            super().add_scaled(noise, scale * (1 + 2e-7), *others)

    assert gives_same_noise(compiled)
    assert not gives_same_noise(Wrong(compiled.library, compiled.level))
    assert not gives_same_noise(WrongSum(compiled.library, compiled.level))


def test_groups_are_advanced_at_different_steps():
    """After the first step, no step makes more than its share of the noise, so that all take about as long."""
    work = []

    class Counting(PhaseNoiseKernel):
        def advance(self, key, combination, steps, tiles, *others):
            work[-1] += int(tiles[:, 3].sum()) * (steps.end - steps.first)
            super().advance(key, combination, steps, tiles, *others)

    real, total = best_kernel(), 200_000
    fast = CompiledCombination(Counting(real.library, real.level), sd.Banded(9), phase(100), total, [(0, total)])
    for step in range(90):
        work.append(0)
        fast.noise_of(step)
    assert max(work[1:]) <= 1.3 * (total / 2)
    assert sum(work[1:]) == pytest.approx(89 * total / 2, rel=0.1)


def test_memory_that_is_short_is_said():
    kernel = best_kernel()
    recipe = phase_noise_kernel.CombinationRecipe(
        phase_noise_kernel.RECURSIVE, np.zeros(1, np.float32), np.zeros(0, np.float32)
    )
    steps, rows = phase_noise_kernel.StepRange(0, 0, 1, resumes=False), np.zeros((1, 10), dtype=np.float32)
    with pytest.raises(MemoryError, match="correlated noise"):
        kernel.advance(bytes(40), recipe, steps, kernel.cut_tiles(10, [(0, 10)], 64), 1 << 55, rows, None)


def test_kept_vectors_are_validated():
    assert sd.Correlated(1.0, sd.Banded(2), kept_vectors=0) == sd.Correlated(1.0, sd.Banded(2))
    with pytest.raises(ValueError, match="kept_vectors"):
        sd.Correlated(1.0, sd.Banded(2), kept_vectors=-1)
