"""Numbers at the ends of what is accepted: an answer or one line, never a traceback, a hang or a zero."""

import math
import resource
import subprocess
import sys

import pytest

from sordino import accounting as A
from sordino.app.cli.main import main
from sordino.events import DiscreteGaussian, Gaussian, Laplace, Poisson, Repeat, Shuffle, Together, TunePoisson
from sordino.privacy_loss.pairs import discrete_gaussian_groups, discrete_gaussian_pair


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.5])
def test_a_meter_answers_for_many_steps_with_little_noise(rate):
    """It divided by zero at σ = 0.46 and 600,000 steps."""
    step = Poisson(rate, Gaussian(0.46))
    found = A.Meter(step, 1e-5).epsilon(600_000)
    low, _ = A.PLD().bounds(Repeat(step, 600_000), 1e-5)
    assert low <= found < math.inf


def test_live_takes_what_pld_takes():
    searches = Repeat(TunePoisson(Gaussian(3.0), 5.0), 2)
    assert A.Live().epsilon(searches, 1e-5) == A.PLD().epsilon(searches, 1e-5)
    run = Repeat(Poisson(0.1, Gaussian(1.0)), 40)
    assert A.Live().epsilon(run, 1e-5, relation="replace-one") == A.PLD().epsilon(run, 1e-5, relation="replace-one")
    assert A.Live().epsilon(Repeat(Laplace(2.0), 3), 0.0) == A.PLD().epsilon(Repeat(Laplace(2.0), 3), 0.0)


def test_a_wide_discrete_gaussian_is_close_to_the_continuous_one_in_little_memory():
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30, 2 * 2**30));"
        "from sordino.accounting import PLD; from sordino.events import DiscreteGaussian, Repeat;"
        "print(*PLD().bounds(Repeat(DiscreteGaussian(1e6), 10**9), 1e-5))"
    )
    assert resource.RLIMIT_AS
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    low, high = map(float, found.stdout.split())
    exact = A.gaussian_epsilon(math.sqrt(1e9) / 1e6, 1e-5)
    assert low <= exact * (1 + 1e-4)
    assert exact * (1 - 1e-4) <= high <= 1.01 * exact


def test_groups_of_whole_numbers_enclose_the_exact_discrete_gaussian():
    sigma = 40.0
    exact = discrete_gaussian_pair(sigma, 1)
    upper, lower = discrete_gaussian_groups(sigma, 1)
    for epsilon in (0.0, 0.02, 0.1, 0.2):
        deltas = []
        for pair in (lower, exact, upper):
            gain = pair.p - math.exp(epsilon) * pair.q
            deltas.append(float(gain[gain > 0].sum()) + pair.infinite)
        assert deltas[0] <= deltas[1] * (1 + 1e-12) + 1e-18
        assert deltas[1] <= deltas[2] * (1 + 1e-12) + 1e-18
    with pytest.raises(A.Unsupported, match="1e\\+07"):
        A.PLD().epsilon(DiscreteGaussian(1e8), 1e-5)


def test_a_billion_steps_have_a_bound():
    """`sordino account --steps 1000000000` printed inf, where 65137 was known."""
    event = Repeat(Poisson(0.01, Gaussian(1.1)), 10**9)
    low, high = A.PLD().bounds(event, 1e-5)
    assert 0 < low <= high <= 65138
    assert A.PLD().epsilon(event, 1e-5) <= 65138


def test_steps_near_a_hundred_million_are_calibrated_in_few_evaluations():
    asked = []

    def run(count):
        asked.append(count)
        return Repeat(Poisson(1e-4, Gaussian(1.1)), count)

    found = A.calibrate(run, A.PLD(tolerance=1e-3), 3.0, 1e-5, whole=True)
    assert 3e7 < found < 5e7
    assert 2.99 < A.PLD(tolerance=1e-3).epsilon(run(found), 1e-5) <= 3.0
    assert len(set(asked)) < 60


def test_what_is_proved_from_below_about_shuffled_passes_is_the_attack():
    """Both ends were given as 32.913: the lower one is proved at 7.832 only."""
    passes = Repeat(Shuffle(Repeat(Gaussian(1.1), 240)), 30)
    low, high = A.PLD().bounds(passes, 1e-5)
    assert low == pytest.approx(A.shuffle_lower_bound(1.1, 240, 30, 1e-5), rel=1e-9)
    assert 7.8 < low < 7.9
    assert high == pytest.approx(A.gaussian_epsilon(math.sqrt(30) / 1.1, 1e-5), rel=1e-9)
    delta_low, delta_high = A.PLD().delta_bounds(passes, 5.0)
    assert 0 < delta_low < 0.01 < delta_high
    assert delta_high == pytest.approx(A.gaussian_delta(math.sqrt(30) / 1.1, 5.0), rel=1e-9)
    # the attack is at least as good as its bound says: the same δ comes back at the ε it proves
    assert A.PLD().delta_bounds(passes, low)[0] == pytest.approx(1e-5, rel=0.1)
    # one batch a pass is no shuffle at all, and beside a release that costs more, that one is proved
    alone = A.PLD().bounds(Repeat(Shuffle(Gaussian(2.0)), 4), 1e-5)
    assert alone[0] == pytest.approx(alone[1], rel=2e-3)
    assert A.PLD().bounds(Together(passes, Gaussian(0.05)), 1e-5)[0] >= A.PLD().epsilon(Gaussian(0.05), 1e-5) * (
        1 - 1e-9
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["tradeoff", "--rate", "0.01", "--multiplier", "0.001", "--steps", "1000"], 0, "mu = inf"),
        (["account", "--rate", "0.01", "--multiplier", "1e-300", "--steps", "10"], 2, "at least 1e-09"),
        (["account", "--rate", "0.01", "--multiplier", "1e-9", "--steps", "10"], 0, "DP"),
        (["account", "--rate", "0.01", "--multiplier", "1.1", "--steps", "1" + "0" * 20], 2, "21 digits"),
        (["tradeoff", "--rate", "0.01", "--multiplier", "1.1", "--steps", "1" + "0" * 20], 2, "21 digits"),
        (["account", "--rate", "0.01", "--multiplier", "1.1", "--steps", "1000000000"], 0, "certified"),
    ],
)
def test_commands_answer_extreme_numbers_in_one_line_or_with_a_bound(arguments, code, said, capsys):
    assert main(arguments) == code
    out, error = capsys.readouterr()
    assert said in out + error
    assert "inf," not in out
    assert "Traceback" not in error
