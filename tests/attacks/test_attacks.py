"""Attacks find what is there to be found, and nothing where nothing is; the game counts rightly."""

import numpy as np
import pytest
import torch
from torch import nn

import sordino
from sordino.app.attacks import membership_game
from sordino.app.attacks.attack_figures import draw_inverted_classes, draw_roc_curves
from sordino.app.attacks.membership_inference import attack_membership
from sordino.app.attacks.model_inversion import invert_classes
from sordino.app.cli.main import main
from sordino.attacks import exposure, scores
from sordino.attacks.roc import Roc
from sordino.attacks.shadows import train_shadow_heads


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacked") / "run"
    sordino.fit("digits", steps=20, records=400, out=folder)
    return folder


def test_confidence_is_the_log_odds_of_the_label():
    logits = np.random.default_rng(0).normal(size=(5, 4))
    labels = np.array([0, 3, 1, 1, 2])
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    own = p[np.arange(5), labels]
    assert scores.logit_of_label(logits, labels) == pytest.approx(np.log(own / (1 - own)))
    assert scores.probability_of_label(scores.logit_of_label(logits, labels)) == pytest.approx(own)


def test_lira_is_the_ratio_of_two_normal_densities():
    rng = np.random.default_rng(1)
    inside = rng.random((4000, 3)) < 0.5
    shadows = np.where(inside, rng.normal(2.0, 1.0, size=(4000, 3)), rng.normal(0.0, 1.0, size=(4000, 3)))
    phi = np.array([-1.0, 1.0, 3.0])
    assert scores.lira_score(phi, shadows, inside) == pytest.approx(2 * phi - 2, abs=0.3)


def test_attacks_on_a_planted_leak_and_on_none():
    """Members' confidence is 1.5 deviations above the others'; the area under the curve is then Φ(1.5/√2) = 0.856."""
    rng = np.random.default_rng(2)
    n, s = 1000, 64
    hard = rng.normal(0.0, 3.0, size=2 * n)  # some records are easy for everybody
    inside = rng.random((s, 2 * n)) < 0.5
    shadows = hard + 1.5 * inside + rng.normal(size=(s, 2 * n))
    member = np.arange(2 * n) < n
    for leak, low, high in ((1.5, 0.8, 0.9), (0.0, 0.46, 0.54)):
        phi = hard + leak * member + rng.normal(size=2 * n)
        lira = scores.lira_score(phi, shadows, inside)
        assert low < Roc(lira[member], lira[~member]).area < high
        rmia = scores.rmia_score(phi, shadows, inside, np.flatnonzero(~member)[::4])
        area = Roc(rmia[member], rmia[~member]).area
        assert area > 0.6 if leak else abs(area - 0.5) < 0.06
        plain = Roc(scores.loss_score(phi)[member], scores.loss_score(phi)[~member]).area
        assert plain < 0.7  # difficulty hides the leak from who has no shadows


def test_shadow_heads_know_the_half_they_had():
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(200, 300, generator=generator), torch.randint(3, (200,), generator=generator)
    made = train_shadow_heads(x, y, 3, 16, seed=0)
    phi = scores.logit_of_label(made.logits, y.numpy())
    assert phi[made.inside].mean() > phi[~made.inside].mean() + 1


def test_rates_are_counted_at_few_false_positives():
    roc = Roc(np.array([5.0, 3.0, 1.0, 1.0]), np.array([4.0, 2.0, 0.0, 0.0]))
    assert (
        roc.true_positives_at(0.0),
        roc.true_positives_at(0.25),
        roc.true_positives_at(0.5),
        roc.true_positives_at(1.0),
    ) == (0.25, 0.5, 1.0, 1.0)
    assert roc.true_positives_lower_bound(0.25) < 0.5
    alarms, hits = roc.curve()
    assert (alarms[0], hits[0], alarms[-1], hits[-1]) == (0.0, 0.0, 1.0, 1.0)


def test_a_private_run_stays_under_its_ceiling(run, tmp_path):
    """At a tenth false positives, to the 99.9 % bound of what was counted."""
    found = attack_membership(run, shadows=8)
    assert set(found.rocs) == {"loss", "LiRA", "RMIA"}
    for roc in found.rocs.values():
        assert roc.true_positives_lower_bound(0.1, 0.001) <= float(found.ceiling.power(0.1))
    draw_roc_curves([found], tmp_path / "roc.png")
    assert (tmp_path / "roc.png").stat().st_size > 5000
    assert "risk report" in str(found)


def test_the_command_keeps_what_it_found(run, capsys):
    assert main(["attack", "mia", str(run), "--shadows", "0", "--json"]) == 0
    assert '"loss"' in capsys.readouterr().out
    assert '"mia"' in (run / "findings.json").read_text()


def test_inversion_makes_a_picture_for_every_class(run, tmp_path):
    images = invert_classes(run)
    assert images.shape[0] == 10
    assert images.min() >= 0
    assert images.max() <= 1
    assert images.flatten(1).std(dim=1).min() > 0
    draw_inverted_classes([("a", images)], tmp_path / "grid.png")
    assert (tmp_path / "grid.png").exists()


def test_a_secret_that_was_memorised_is_exposed_and_another_is_not():
    torch.manual_seed(4)
    words, candidates = 10, torch.cartesian_prod(*[torch.arange(10)] * 3)  # three digits: 1,000 secrets
    secret = torch.tensor([[7, 3, 9]])

    class Next(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(words + 1, words)

        def forward(self, tokens):
            return self.table(torch.cat([torch.full((len(tokens), 1), words), tokens[:, :-1]], dim=1))

    def loss(model, tokens):
        return nn.functional.cross_entropy(model(tokens).transpose(1, 2), tokens, reduction="none").sum(dim=1)

    fresh, trained = Next(), Next()
    optimizer = torch.optim.SGD(trained.parameters(), lr=1.0)
    for _ in range(60):
        optimizer.zero_grad()
        loss(trained, secret.expand(4, -1)).mean().backward()
        optimizer.step()
    known = [
        exposure.exposure(
            float(exposure.losses_of_candidates(m, loss, secret)), exposure.losses_of_candidates(m, loss, candidates)
        )
        for m in (fresh, trained)
    ]
    assert known[1] == pytest.approx(np.log2(1000))
    assert known[0] < 7


def test_the_game_counts_what_was_right(run):
    dealt = membership_game.deal_game(run, rounds=6, seed=1)
    right = iter("i" if one.member else "o" for one in dealt.rounds)
    said = []
    assert membership_game.play_in_terminal(dealt, lambda _: next(right), said.append) == 1.0
    assert "you: 6 of 6" in said[-1]
    assert 0.5 <= dealt.best < 1
    assert membership_game.play_in_terminal(dealt, lambda _: "q", said.append) == 0.0


def test_the_best_attacker_is_right_as_often_as_the_curve_says():
    from scipy.special import ndtr

    from sordino.accounting import tradeoff
    from sordino.events import Gaussian

    assert membership_game.largest_possible_accuracy(tradeoff(Gaussian(1.0))) == pytest.approx(
        float(ndtr(0.5)), abs=2e-3
    )


def test_the_page_holds_the_rounds_and_loads_nothing(run, tmp_path):
    assert main(["attack", "game", str(run), "--page", str(tmp_path / "game.html"), "--rounds", "4"]) == 0
    text = (tmp_path / "game.html").read_text()
    assert text.count('"member"') == 4
    assert "http" not in text.replace("http://www.w3.org", "")
