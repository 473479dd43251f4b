"""Audits of runs with correlated noise: a replay takes phases apart, and a training with canaries is below its claim."""

import json
import shutil

import numpy as np
import pytest

import sordino as sd
from sordino.app.audits.one_run_audit import ClaimedCurves, audit_one_run
from sordino.app.audits.replay_audit import audit_by_replay
from sordino.app.audits.step_parts import PhaseStep, find_early_return
from sordino.app.runs.fit import fit, resume
from sordino.app.runs.job import Job, assemble_job
from sordino.app.runs.methods import find_word
from sordino.app.runs.progress_view import Silent
from sordino.app.runs.settings import make_settings
from sordino.auditing.canary_scores import score_canaries_in_phase
from sordino.events import Correlated, CyclicPoisson, FixedOrder
from sordino.matrix_factorization.toeplitz import toeplitz_matrix
from sordino.release import compiled_combinations, noise_combinations
from sordino.release.correlated_noise import Correlated as CorrelatedNoise
from sordino.rng.streams import Rng
from sordino.sampling import cyclic_poisson

GIVEN = {"steps": 12, "records": 600, "noise_multiplier": 1.0, "keep_key": True, "checkpoint_every": 6}
METHODS = {"banded": {"bands": 4, "groups": 4}, "inverse-banded": {"bands": 3}, "buffered": {"buffers": 2}}
CHOSEN = (2, 9)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One finished run of each method, whose keys were kept."""
    folder = tmp_path_factory.mktemp("runs")
    for method, parameters in METHODS.items():
        fit("spiral", method=method, parameters=parameters, out=folder / method, **GIVEN)
    return folder


@pytest.fixture
def edited(runs, tmp_path):
    """A copy of the banded run whose files may be changed."""
    shutil.copytree(runs / "banded", tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("method", METHODS)
def test_a_phase_is_replayed_as_it_was_entered(runs, method):
    found = audit_by_replay(runs / method, choose=CHOSEN)
    assert found.passed, str(found)
    assert not found.not_tried
    assert found.lots_redrawn == GIVEN["steps"]
    assert found.farthest_noise < 1e-5
    assert "12 lots searched" in str(found)


def test_the_noise_of_a_phase_is_made_again_by_other_means(monkeypatch):
    """Against dense linear algebra, for every strategy and several steps."""
    for strategy in (sd.Banded(3), sd.InverseBanded(3), sd.Buffered((0.9, 0.5), (0.2, 0.3))):
        stream = Rng.from_seed(5)
        independent = []
        for step in range(7):
            phase = stream.child("phase", 2)
            phase.counter = step
            independent.append(phase.normal(40).double().numpy())
        dense = np.linalg.solve(toeplitz_matrix(strategy.encoder(7), 7), np.array(independent))
        for step in (0, 3, 6):
            made = PhaseStep(strategy, 2, step).make_noise(Rng.from_seed(5), 40).numpy()
            assert np.allclose(made, dense[step], atol=1e-12)


def forget_earlier_steps(monkeypatch):
    """A buffer that is not advanced: every step has independent noise."""
    monkeypatch.setattr(compiled_combinations, "load_phase_noise_kernel", lambda: None)
    advance = noise_combinations.BandedCombination.advance

    def forgetful(self, step):
        self._ring.zero_()
        return advance(self, step)

    monkeypatch.setattr(noise_combinations.BandedCombination, "advance", forgetful)


def have_less_noise(monkeypatch):
    """All noise is a thousandth short."""
    bound_for = CorrelatedNoise.bound_for
    monkeypatch.setattr(CorrelatedNoise, "bound_for", lambda self, sensitivity: 0.999 * bound_for(self, sensitivity))


def return_too_early(monkeypatch):
    """Groups take turns one step too early, while the declared ones are charged."""
    draws = cyclic_poisson.CyclicPoisson.draws

    def early(self, n, rng, start):
        declared = next(draws(self, n, rng, start)).of_phase
        yield from (
            cyclic_poisson.Draw(draw.indices, draw.amplify, cover=0, of_phase=declared)
            for draw in draws(sd.CyclicPoisson(self.rate, self.groups - 1), n, rng, start)
        )

    monkeypatch.setattr(cyclic_poisson.CyclicPoisson, "draws", early)


@pytest.mark.parametrize(
    ("mutate", "words"),
    [
        (forget_earlier_steps, "noise is"),
        (have_less_noise, "noise is"),
        (return_too_early, "a record is in the lots of steps"),
    ],
)
def test_a_replay_finds_what_is_wrong_with_a_phase(mutate, words, monkeypatch, tmp_path):
    """The run itself is made by the wrong code, so that its digests agree with it."""
    mutate(monkeypatch)
    fit("spiral", method="banded", parameters=METHODS["banded"], out=tmp_path / "run", **GIVEN)
    found = audit_by_replay(tmp_path / "run", choose=CHOSEN)
    assert any(words in what for what in found.wrong), str(found)
    assert not any("other parameters" in what for what in found.wrong)


@pytest.mark.parametrize(("field", "value", "words"), [("groups", 5, "the settings say"), ("steps", 11, "charges 11")])
def test_a_claim_for_another_phase_is_seen(edited, field, value, words):
    path = edited / "privacy.json"
    said = json.loads(path.read_text())
    said["claim"]["event"][field] = value
    path.write_text(json.dumps(said))
    found = audit_by_replay(edited, choose=CHOSEN[:1])
    assert any(words in what for what in found.wrong), str(found)


def test_an_early_return_is_found():
    lots = [np.array([0, 1]), np.array([2]), np.array([3, 1])]
    assert find_early_return(iter(lots), 3) == (0, 2)
    assert find_early_return(iter(lots), 2) is None


class StopTheRun(Exception):
    """Raised in the middle of a run."""


class StoppingView(Silent):
    """Stops the run at its second evaluation."""

    def __init__(self):
        self.shown = 0

    def show_evaluation(self, row):
        self.shown += 1
        if self.shown == 2:
            raise StopTheRun


def test_a_resumed_phase_is_planned_and_charged_once(tmp_path, monkeypatch):
    """A run that stopped within its phase goes on with it: the plan and the claim are those of the whole run."""
    folder = tmp_path / "run"
    given = {**GIVEN, "evaluate_every": 4, "view": StoppingView()}
    with pytest.raises(StopTheRun):
        fit("spiral", method="banded", parameters=METHODS["banded"], out=folder, **given)
    first_plan = json.loads((folder / "privacy.json").read_text())["claim"]["epsilon"]
    plans = []
    planned_claim = Job.planned_claim

    def keep_plan(self, *arguments, **named):
        plans.append(planned_claim(self, *arguments, **named))
        return plans[-1]

    monkeypatch.setattr(Job, "planned_claim", keep_plan)
    history = resume(folder)
    assert plans[-1].epsilon == history.claim.epsilon == pytest.approx(first_plan)
    assert audit_by_replay(folder, choose=(9, 12)).passed


def test_more_bands_than_groups_are_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="8 bands with 4 groups"):
        fit("spiral", method="banded", parameters={"bands": 8, "groups": 4}, out=tmp_path / "run", **GIVEN)


def test_a_word_of_noise_has_its_parameters():
    assert find_word("noise", "banded").parameters(None) == {"bands": 16.0}
    assert find_word("sampler", "cyclic-poisson").parameters(None) == {"groups": 16.0}


@pytest.mark.parametrize(
    "phase",
    [
        CyclicPoisson(0.5, 2, 4, Correlated(1.5, ("banded", 2))),
        CyclicPoisson(1.0, 2, 4, Correlated(1.5, ("banded", 2))),
        FixedOrder(4, 2, Correlated(1.5, ("inverse-banded", 2))),
    ],
    ids=str,
)
def test_a_score_is_the_likelihood_ratio_of_all_patterns(phase):
    """By enumeration of every pattern with its probability, and densities of dense Gaussians."""
    steps, sigma = phase.steps, phase.event.multiplier
    encoder = toeplitz_matrix(phase.event.factorisation.encoder(steps), steps)
    released = np.random.default_rng(0).normal(size=(steps, 3))
    patterns: list[tuple[float, np.ndarray]] = []
    spacing = phase.groups if isinstance(phase, CyclicPoisson) else phase.separation
    for group in range(spacing):
        turns = list(range(group, steps, spacing))
        rate = phase.rate if isinstance(phase, CyclicPoisson) else 1.0
        for chosen in range(2 ** len(turns)):
            taken = [turn for i, turn in enumerate(turns) if chosen >> i & 1]
            chance = rate ** len(taken) * (1 - rate) ** (len(turns) - len(taken)) / spacing
            patterns.append((chance, np.isin(np.arange(steps), taken).astype(float)))
    seen = encoder @ released
    dense = [
        np.log(
            sum(
                chance * np.exp((np.sum(seen[:, i] ** 2) - np.sum((seen[:, i] - encoder @ p) ** 2)) / (2 * sigma**2))
                for chance, p in patterns
            )
        )
        for i in range(3)
    ]
    assert np.allclose(score_canaries_in_phase(released, phase), dense)


def test_independent_noise_has_no_score_of_a_phase():
    with pytest.raises(ValueError, match="no correlated noise"):
        score_canaries_in_phase(np.zeros((4, 1)), FixedOrder(4, 2, sd.events.Gaussian(1.0)))


def job_of(method: str, epsilon: float):
    """Returns a small job with correlated noise at an ε."""
    given = {"epsilon": epsilon, "steps": 20, "rate": 0.1, "records": 300, "method": method}
    settings = make_settings("spiral", given, METHODS[method])
    return assemble_job(settings, lambda _: None)


@pytest.mark.parametrize("method", METHODS)
def test_one_training_with_correlated_noise_is_not_contradicted(method):
    """At 5 %; the seed is the first one. The score sees something: canaries in and out lie apart."""
    audited = audit_one_run(job_of(method, 4.0), 200, ("gradient",), seed=0)
    assert audited.passed, str(audited)
    assert audited.epsilon == pytest.approx(4.0, rel=0.3)  # in a fixed order canaries make an epoch longer
    assert audited.measured[0].estimate > 0.3


@pytest.mark.parametrize("method", [pytest.param("banded", marks=pytest.mark.slow), "inverse-banded"])
def test_one_training_without_noise_is_contradicted(method):
    job = job_of(method, 1.0)
    silent = sd.NoisySum(sd.Flat(job.settings.recipe.bound), sd.Correlated(1e-3, job.create_query().noise.strategy))
    event, delta = job.event(), job.settings.recipe.delta
    claimed = ClaimedCurves.from_event(event, sd.accounting.PLD().epsilon(event, delta), delta)
    audited = audit_one_run(job, 200, ("gradient",), claimed=claimed, query=silent, seed=0)
    assert not audited.passed
    assert audited.measured[0].lower_own > audited.epsilon
