"""The membership game: a coin decides whether a record was trained on, and the player guesses.

It is the attacker–oracle game by which differential privacy is defined, played on a trained run: each round shows a
record and what the network says of it, and asks. At the end the player's score stands beside that of the loss
threshold, and beside the best that the claim allows any attacker: 1 − the smallest mean of both errors on the claim's
trade-off curve.

Privacy: the page shows records of the training set. It is as secret as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sordino.accounting.tradeoff import Tradeoff, tradeoff
from sordino.app.attacks.membership_inference import Target, load_target
from sordino.app.report.templates import template_environment
from sordino.attacks import scores
from sordino.rng.streams import Rng

_SHADES = " .:-=+*#%@"


@dataclass(frozen=True, eq=False)
class Round:
    """One record, its class, what the network says, and the coin."""

    picture: list[list[float]] | None  # rows of numbers from 0 to 1
    label: int
    predicted: int
    confidence: float
    member: bool


@dataclass(frozen=True, eq=False)
class Game:
    """The rounds of a game on one run."""

    name: str
    epsilon: float | None
    rounds: tuple[Round, ...]
    threshold: float
    """Of the confidence, chosen on records that are not played with."""
    best: float | None
    """The largest share of right guesses that the claim allows; None without a claim."""

    def threshold_accuracy(self) -> float:
        """Returns the share of rounds that the loss threshold guesses correctly."""
        return float(np.mean([(r.confidence > self.threshold) == r.member for r in self.rounds]))


def largest_possible_accuracy(curve: Tradeoff) -> float:
    """Returns the largest possible share of correct guesses in the membership game with a fair coin: 1 − min over α of
    (α + f(α))/2.

    >>> import numpy as np
    >>> round(largest_possible_accuracy(Tradeoff(np.array([0.0]), np.array([0.2]))), 3)
    0.6
    """
    grid = np.linspace(0, 1, 2001)
    return float(1 - ((grid + curve(grid)) / 2).min())


def deal_game(folder: str | Path, rounds: int = 12, *, seed: int | None = None) -> Game:
    """Deals the rounds of a membership game on a run, by coins of its own."""
    # Members and others are as many, and a fair coin says which of them a round shows.
    attack_target = load_target(folder)
    rng = Rng.from_entropy() if seed is None else Rng.from_seed(seed)
    with torch.no_grad():
        logits = torch.cat([attack_target.model(chunk) for chunk in attack_target.x.split(1000)]).double().numpy()
    # The threshold is chosen on records that are not played with.
    phi = scores.probability_of_label(scores.logit_of_label(logits, attack_target.y.numpy()))
    inside, outside = rng.permutation(len(phi) // 2), rng.permutation(len(phi) // 2) + len(phi) // 2
    unplayed_records = np.concatenate([inside[rounds:], outside[rounds:]])
    coins = rng.uniform(rounds) < 0.5
    played_records = [int(inside[i] if coin else outside[i]) for i, coin in enumerate(coins)]
    guarantee = attack_target.evidence.guarantee
    return Game(
        attack_target.evidence.name,
        None if guarantee is None else guarantee.epsilon,
        tuple(_make_round(attack_target, i, logits, phi) for i in played_records),
        _choose_threshold(phi[unplayed_records], attack_target.member[unplayed_records]),
        None if guarantee is None else largest_possible_accuracy(tradeoff(guarantee.event)),
    )


def play_in_terminal(game: Game, ask: Callable[[str], str], say: Callable[[str], None]) -> float:
    """Plays the membership game in the terminal (i for in, o for out, q to stop); returns the share of
    correct guesses.
    """
    right = done = 0
    for number, game_round in enumerate(game.rounds, 1):
        # Every second row, because a letter is twice as high as it is wide.
        if game_round.picture is not None:
            say("\n".join("".join(_SHADES[min(9, int(10 * v))] * 2 for v in row) for row in game_round.picture[::2]))
        network_output = (
            f"the network says {game_round.predicted}, and gives its class, {game_round.label}, "
            f"{game_round.confidence:.1%}"
        )
        answer = (
            ask(f"round {number} of {len(game.rounds)}: {network_output}. Was it trained on? [i]n / [o]ut / [q]uit ")
            .strip()
            .lower()
        )
        # Stopping early counts only the rounds that were played.
        if answer.startswith("q"):
            break
        done += 1
        is_right = answer.startswith("i") == game_round.member
        right += is_right
        say(f"{'right' if is_right else 'wrong'}: it was {'in' if game_round.member else 'out'}")
    # The player stands beside the loss threshold, and beside the best that anybody can reach in the long run.
    summary = (
        f"you: {right} of {done}; the loss threshold: {game.threshold_accuracy():.0%} of all rounds; guessing: 50 %"
    )
    say(summary + ("" if game.best is None else f"; nobody, in the long run: more than {game.best:.1%}"))
    return right / done if done else 0.0


def render_page(game: Game) -> str:
    """Returns the membership game as one HTML page that loads nothing."""
    table: list[dict[str, Any]] = [vars(one) for one in game.rounds]
    template = template_environment().get_template("game.html.jinja")
    return template.render(game=game, rounds=table, machine=game.threshold_accuracy(), title="Was it trained on?")


def _make_round(attack_target: Target, i: int, logits: Any, phi: Any) -> Round:
    """Returns one round of the membership game; records that are grey images are shown as a picture."""
    # Brightness is stretched to the whole range, so that pale records can be seen.
    picture = None
    if attack_target.x.dim() == 4 and attack_target.x.shape[1] == 1:
        x = attack_target.x[i, 0].float()
        picture = [[round(float(v), 2) for v in row] for row in (x - x.min()) / (x.max() - x.min() + 1e-9)]
    return Round(
        picture, int(attack_target.y[i]), int(logits[i].argmax()), float(phi[i]), bool(attack_target.member[i])
    )


def _choose_threshold(phi: Any, member: Any) -> float:
    """Returns the confidence that separates the most members from others in the membership game."""
    # Going up the confidences, each other record below the threshold gains one, each member loses one.
    order = np.argsort(phi)
    gain = np.cumsum(np.where(member[order], -1, 1))
    return float(phi[order][int(np.argmax(gain))])
