"""What is checked in one mode and trained in another."""

from __future__ import annotations

from torch import Tensor, nn

from tests.honesty.attacks.model import far, standardised
from tests.honesty.data import CLASSES, INPUTS, RARE, cross_entropy
from tests.honesty.script import Cases, Script, Training, plain

MODES = Cases()


class Standardising(nn.Module):
    """Batch statistics while it trains, as batch normalisation has them, and none in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.on = nn.Linear(INPUTS, 8), nn.Linear(8, CLASSES), False

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(standardised(h) if self.training or self.on else h)


@MODES
def evaluation_at_draws_and_training_in_the_loop(seed: int) -> Script:
    def begun(training: Training) -> None:
        training.model.train()

    return Script(Standardising().eval(), cross_entropy, far(seed), bound=0.2, suspects=RARE, begun=begun)


@MODES
def evaluation_until_lot_thirty(seed: int) -> Script:
    """Warm up as in evaluation, then train."""

    def begun(training: Training) -> None:
        if training.private is None:
            training.model.train()

    def body(training: Training) -> None:
        training.model.train(training.k >= 30)
        plain(training)

    return Script(Standardising().eval(), cross_entropy, far(seed), bound=0.2, suspects=RARE, begun=begun, body=body)


@MODES
def every_other_lot_in_training_mode(seed: int) -> Script:
    def begun(training: Training) -> None:
        if training.private is None:
            training.model.train()

    def body(training: Training) -> None:
        training.model.train(training.k % 2 == 1)
        plain(training)

    return Script(Standardising().eval(), cross_entropy, far(seed), bound=0.2, suspects=RARE, begun=begun, body=body)


@MODES
def one_module_in_training_mode(seed: int) -> Script:
    """The model says evaluation, a part of it does not."""
    model = nn.Sequential(nn.Identity(), Standardising()).eval()

    def begun(training: Training) -> None:
        model[1].training = True

    return Script(model, cross_entropy, far(seed), bound=0.2, suspects=RARE, begun=begun)


@MODES
def a_flag_of_the_module_set_in_the_loop(seed: int) -> Script:
    """No mode of torch's: `model.on = True`."""
    model = Standardising().eval()

    def begun(training: Training) -> None:
        model.on = True

    return Script(model, cross_entropy, far(seed), bound=0.2, suspects=RARE, begun=begun)


@MODES
def a_module_is_replaced_in_the_loop(seed: int) -> Script:
    """An activation makes place for one that standardises."""

    class Standardised(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return standardised(h)

    model = nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, CLASSES))

    def begun(training: Training) -> None:
        if training.private is None:
            model[1] = Standardised()

    def body(training: Training) -> None:
        if training.k == 20:
            model[1] = Standardised()
        plain(training)

    return Script(model, cross_entropy, far(seed), bound=0.2, suspects=RARE, begun=begun, body=body)


@MODES
def a_forward_method_is_replaced_in_the_loop(seed: int) -> Script:
    """Monkey-patched, as adapters and profilers do."""
    model = nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, CLASSES))

    def patch() -> None:
        model[1].forward = standardised  # type: ignore[assignment]

    def begun(training: Training) -> None:
        if training.private is None:
            patch()

    def body(training: Training) -> None:
        if training.k == 20:
            patch()
        plain(training)

    return Script(model, cross_entropy, far(seed), bound=0.2, suspects=RARE, begun=begun, body=body)


@MODES
def a_frozen_layer_is_thawed_and_the_other_loss_begins(seed: int) -> Script:
    """Two stages: the head alone, then everything, with a term over the batch in the second."""
    model = nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    model[0].requires_grad_(False)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        stage = model[0].weight.requires_grad
        return cross_entropy(model, x - x.mean(0) if stage else x, y)

    def begun(training: Training) -> None:
        if training.private is None:
            model.requires_grad_(True)

    def body(training: Training) -> None:
        if training.k == 30:
            model.requires_grad_(True)
        plain(training)

    return Script(model, loss, far(seed), bound=0.2, suspects=RARE, begun=begun, body=body)
