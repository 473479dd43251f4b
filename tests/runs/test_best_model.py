"""Early stopping and the best model on public validation records, and the measures of language models."""

import math

import pytest
import torch
from torch import nn

import sordino as sd
from sordino.accounting import PLD
from sordino.app.runs.best_model import PUBLIC_VALIDATION, BestModel
from sordino.app.runs.evaluate import frequency_baseline, measure_tokens
from sordino.app.runs.fit import resume
from sordino.app.runs.problem import token_cross_entropy
from sordino.app.runs.trained_model import load

SHORT = {"epsilon": 8.0, "steps": 40, "rate": 0.1, "evaluate_every": 4, "seed": 3, "progress": False}


def points(n, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator)
    return x, (x[:, 0] > 0).long()


def network():
    torch.manual_seed(0)
    return nn.Linear(4, 2)


@pytest.fixture(scope="module")
def turning(tmp_path_factory):
    """A run whose validation loss falls and then rises: it learns one sign and is validated mostly on the other.

    A model that says nothing has the loss log 2 there, and every step towards the training records raises it.
    """
    x, y = points(400, seed=1)
    validation = (x, 1 - y)
    out = tmp_path_factory.mktemp("runs") / "turning"
    model = network()
    history = sd.fit(model, points(600, seed=0), public_validation=validation, patience=3, out=out, **SHORT)
    return history, validation, out


def test_the_run_ends_with_the_model_of_the_lowest_validation_loss(turning):
    history, (x, y), out = turning
    losses = [row.validation_loss for row in history.rows]
    assert min(losses) == losses[0]  # the first evaluation was the best one
    kept = float(nn.functional.cross_entropy(history.model(x).detach(), y))
    assert kept == pytest.approx(losses[0], abs=1e-6)
    # The last line is about the model that is kept, and so is the file.
    assert history.rows[-1].validation_loss == pytest.approx(losses[0], abs=1e-6)
    loaded = load(out, model=network()).network
    assert torch.equal(loaded.weight, history.model.weight)


def test_stopping_early_takes_fewer_steps_and_the_claim_is_of_all_of_them(turning):
    history, _, _ = turning
    assert history.finished
    # One best evaluation, three without a lower loss, and one of the model that is kept.
    assert [row.step for row in history.rows] == [4, 8, 12, 16, 40]
    planned = sd.events.Repeat(sd.events.Poisson(0.1, history.claim.event.event.event), 40)
    assert history.claim.event == planned
    assert history.claim.epsilon == pytest.approx(PLD().epsilon(planned, 1e-5))
    assert PUBLIC_VALIDATION in history.claim.rests_on


def test_a_finished_run_that_is_resumed_has_the_same_model_and_claim(turning):
    history, validation, out = turning
    again = resume(out, model=network(), data=points(600, seed=0), public_validation=validation, patience=3)
    assert torch.equal(again.model.weight, history.model.weight)
    assert again.claim.epsilon == history.claim.epsilon
    assert PUBLIC_VALIDATION in again.claim.rests_on


def test_without_patience_all_steps_are_taken_and_without_validation_nothing_changes(tmp_path):
    data = points(600, seed=0)
    plain = sd.fit(network(), data, out=tmp_path / "plain", **SHORT)
    kept = sd.fit(network(), data, public_validation=points(300, seed=5), out=tmp_path / "kept", **SHORT)
    assert [row.step for row in kept.rows][:10] == list(range(4, 44, 4))
    assert [row.test_loss for row in kept.rows[:10]] == [row.test_loss for row in plain.rows]
    assert kept.rows[-1].validation_loss == min(row.validation_loss for row in kept.rows)
    assert all(row.validation_loss is None for row in plain.rows)
    assert not any("validation" in words for words in plain.claim.rests_on)


def test_wrong_uses_are_named():
    data = points(600, seed=0)
    with pytest.raises(ValueError, match="records that are trained on"):
        sd.fit(network(), data, public_validation=data, epsilon=1.0)
    with pytest.raises(ValueError, match="give public_validation"):
        sd.fit(network(), data, patience=3, epsilon=1.0)
    with pytest.raises(TypeError, match="of your own, in memory"):
        sd.fit("spiral", patience=3)


def test_the_best_model_survives_a_checkpoint():
    best, model = BestModel(patience=2), network()
    restored = BestModel(patience=2)
    restored.load_state_dict(best.state_dict())
    assert math.isinf(restored.loss)
    for step, loss in enumerate((1.0, 2.0)):
        best.update(model, loss, step)
    restored.load_state_dict(best.state_dict())
    assert (restored.loss, restored.step, restored.evaluations_since) == (1.0, 0, 1)
    assert not restored.has_stopped_improving
    restored.update(model, 1.5, 2)
    assert restored.has_stopped_improving


# --- Language models.


class Bigram(nn.Module):
    """The next token's scores by the token before it."""

    def __init__(self, vocabulary):
        super().__init__()
        self.scores = nn.Embedding(vocabulary, vocabulary)
        nn.init.zeros_(self.scores.weight)

    def forward(self, x):
        return self.scores(x.long())


def texts(n, seed, vocabulary=5):
    """Texts in which token t is followed by t + 1 with a chance of 0.9; the last place of some is padding."""
    generator = torch.Generator().manual_seed(seed)
    tokens = [torch.randint(vocabulary, (n,), generator=generator)]
    for _ in range(8):
        jumps = torch.rand(n, generator=generator) < 0.1
        tokens.append(
            torch.where(jumps, torch.randint(vocabulary, (n,), generator=generator), (tokens[-1] + 1) % vocabulary)
        )
    x = torch.stack(tokens, 1)
    y = x[:, 1:].clone()
    y[::3, -1] = -100
    return x[:, :-1], y


def test_a_language_model_is_measured_by_its_perplexity_beside_token_frequencies(tmp_path):
    test = texts(300, seed=1)
    history = sd.fit(Bigram(5), texts(800, seed=0), test=test, learning_rate=0.2, out=tmp_path / "run", **SHORT)
    assert isinstance(history.claim, sd.Guarantee), history.claim
    found = history.measures
    x, y = test
    # By a loop over tokens.
    losses = []
    scores = history.model(x).detach().double().log_softmax(2)
    for row in range(len(y)):
        losses += [-float(scores[row, place, token]) for place, token in enumerate(y[row].tolist()) if token != -100]
    assert found["perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)
    assert found["baseline"]["perplexity"] == pytest.approx(5.0, rel=0.05)
    assert found["perplexity"] < 3.5
    assert "perplexity" in repr(history)
    assert history.test_accuracy is None


def test_the_loss_of_a_text_is_the_mean_over_its_own_tokens_and_ignores_padding():
    model = Bigram(5)
    nn.init.normal_(model.scores.weight, generator=torch.Generator().manual_seed(0))
    x, y = texts(6, seed=2)
    y[5] = -100  # a text without tokens
    losses = token_cross_entropy(model, x, y)
    for row in range(5):
        counted = y[row] != -100
        expected = nn.functional.cross_entropy(model(x[row])[counted], y[row][counted])
        torch.testing.assert_close(losses[row], expected)
    assert float(losses[5].detach()) == 0.0


def test_measures_of_tokens_leave_padding_out():
    scores, targets = torch.zeros(2, 3, 7), torch.tensor([[1, 2, -100], [0, -100, -100]])
    assert measure_tokens(scores, targets)["perplexity"] == pytest.approx(7.0)
    assert frequency_baseline(targets)["perplexity"] == pytest.approx(3.0)
