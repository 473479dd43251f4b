"""Loops that change the model by something other than a released gradient, or keep what they were not to see."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.honesty.data import CLASSES, INPUTS, cross_entropy, network, vectors
from tests.honesty.script import Cases, Script, Training, plain

LOOP = Cases()


def _script(seed: int, model: nn.Module | None = None) -> Script:
    return Script(network() if model is None else model, cross_entropy, vectors(seed))


@LOOP.unmeasured
def weights_overwritten_with_class_means(seed: int) -> Script:
    """The head begins at the means of the classes, of private records."""
    script = _script(seed, nn.Linear(INPUTS, CLASSES))

    def body(training: Training) -> None:
        if training.k == 10:
            x, y = script.dataset.tensors
            with torch.no_grad():
                for k in range(CLASSES):
                    training.model.weight[k] = x[y == k].mean(0)
        plain(training)

    script.body = body
    return script


@LOOP.unmeasured
def weights_overwritten_after_the_last_lot(seed: int) -> Script:
    script = _script(seed, nn.Linear(INPUTS, CLASSES))

    def ended(training: Training) -> None:
        x, y = script.dataset.tensors
        with torch.no_grad():
            for k in range(CLASSES):
                training.model.weight[k] = x[y == k].mean(0)

    script.ended = ended
    return script


@LOOP.unmeasured
def weights_overwritten_through_data(seed: int) -> Script:
    """`.data` leaves the version counter as it is."""
    script = _script(seed, nn.Linear(INPUTS, CLASSES))

    def body(training: Training) -> None:
        if training.k == 10:
            x, y = script.dataset.tensors
            training.model.weight.data = torch.stack([x[y == k].mean(0) for k in range(CLASSES)])
        plain(training)

    script.body = body
    return script


@LOOP.unmeasured
def weights_overwritten_through_data_in_place(seed: int) -> Script:
    script = _script(seed, nn.Linear(INPUTS, CLASSES))

    def body(training: Training) -> None:
        if training.k == 10:
            x, y = script.dataset.tensors
            training.model.weight.data.copy_(torch.stack([x[y == k].mean(0) for k in range(CLASSES)]))
        plain(training)

    script.body = body
    return script


@LOOP.unmeasured
def a_state_dict_that_was_trained_elsewhere_is_loaded(seed: int) -> Script:
    """A twin is trained on the same records without privacy, and its weights are taken over."""
    script = _script(seed)

    def body(training: Training) -> None:
        if training.k == 10:
            twin = network()
            optimizer = torch.optim.SGD(twin.parameters(), lr=0.5)
            for _ in range(5):
                optimizer.zero_grad()
                cross_entropy(twin, *script.dataset.tensors).mean().backward()
                optimizer.step()
            training.model.load_state_dict(twin.state_dict())
        plain(training)

    script.body = body
    return script


@LOOP.unmeasured
def a_step_by_autograd_grad(seed: int) -> Script:
    script = _script(seed)

    def body(training: Training) -> None:
        plain(training)
        parameters = list(training.model.parameters())
        found = torch.autograd.grad(cross_entropy(training.model, *script.dataset.tensors).mean(), parameters)
        with torch.no_grad():
            for p, g in zip(parameters, found, strict=True):
                p -= 0.1 * g

    script.body = body
    return script


@LOOP.unmeasured
def a_step_by_functional_call_and_grad(seed: int) -> Script:
    """torch.func's gradients, and copy_."""
    script = _script(seed)

    def body(training: Training) -> None:
        plain(training)
        if training.k % 10:
            return

        def total(weights: dict[str, Tensor]) -> Tensor:
            x, y = script.dataset.tensors
            return F.cross_entropy(torch.func.functional_call(training.model, weights, (x,)), y)

        named = dict(training.model.named_parameters())
        found = torch.func.grad(total)({name: p.detach() for name, p in named.items()})
        with torch.no_grad():
            for name, p in named.items():
                p.copy_(p - 0.1 * found[name])

    script.body = body
    return script


class TwoHeads(nn.Module):
    """A body and two heads, the second for another task."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.other = nn.Linear(INPUTS, 8), nn.Linear(8, CLASSES), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).tanh())


@LOOP.unmeasured
def another_head_on_the_same_body(seed: int) -> Script:
    """The second head is frozen for the private loop, and trained by hand beside it."""
    script = _script(seed, TwoHeads())
    script.model.other.requires_grad_(False)

    def body(training: Training) -> None:
        plain(training)
        model, (x, y) = training.model, script.dataset.tensors
        weight = model.other.weight.detach().clone().requires_grad_()
        features = model.body(x).tanh().detach()
        (g,) = torch.autograd.grad(F.cross_entropy(features @ weight.T, (y > 0).long()), weight)
        with torch.no_grad():
            model.other.weight -= 0.1 * g

    script.body = body
    return script


@LOOP.unmeasured
def another_head_is_added_at_the_end(seed: int) -> Script:
    """A linear probe on the private features, put into the model before the claim is printed."""
    script = _script(seed)

    def ended(training: Training) -> None:
        x, y = script.dataset.tensors
        with torch.no_grad():
            features = training.model[:2](x)
        head = nn.Linear(8, CLASSES)
        optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
        for _ in range(10):
            optimizer.zero_grad()
            F.cross_entropy(head(features), y).backward()
            optimizer.step()
        training.model[2] = head

    script.ended = ended
    return script


@LOOP.unmeasured
def an_optimizer_of_its_own_without_the_base_class(seed: int) -> Script:
    """A few lines of SGD with a term of the private records in it."""
    script = _script(seed)

    def body(training: Training) -> None:
        training.private.backward(training.lot)
        with torch.no_grad():
            centre = script.dataset.tensors[0].mean(0)
            for p in training.model.parameters():
                p -= 0.05 * p.grad
            training.model[0].weight += 0.01 * centre

    script.body = body
    return script


@LOOP.unmeasured
def buffers_filled_with_statistics_in_the_loop(seed: int) -> Script:
    """The mean of the private records, kept in the model for inference."""

    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.register_buffer("mean", torch.zeros(INPUTS))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x - self.mean)

    script = _script(seed, Centred())

    def body(training: Training) -> None:
        if training.k == 5:
            training.model.mean.copy_(script.dataset.tensors[0].mean(0))
        plain(training)

    script.body = body
    return script


@LOOP.unmeasured
def a_map_that_keeps_the_losses(seed: int) -> Script:
    """`Sealed.map` with a list's append: the history for a plot."""
    script, kept = _script(seed), []

    def body(training: Training) -> None:
        training.private.backward(training.lot).map(kept.append)
        training.optimizer.step()

    script.body = body
    return script


@LOOP.unmeasured
def a_learning_rate_that_follows_the_losses(seed: int) -> Script:
    """ReduceLROnPlateau in its usual place, fed through a map."""
    script, seen = _script(seed), {}

    def body(training: Training) -> None:
        training.private.backward(training.lot).map(lambda losses: seen.update(last=float(losses.sum())))
        for group in training.optimizer.param_groups:
            group["lr"] = 0.05 if seen["last"] < 10 else 0.01
        training.optimizer.step()

    script.body = body
    return script


@LOOP.unmeasured
def the_lot_is_read_in_the_loop(seed: int) -> Script:
    """`lot.batches()` hands out the records themselves: a step is skipped when they look odd."""
    script = _script(seed)

    def body(training: Training) -> None:
        training.private.backward(training.lot)
        if all(float(x.abs().max()) < 4 for x, _ in training.lot.batches()):
            training.optimizer.step()

    script.body = body
    return script


@LOOP.unmeasured
def gradients_are_kept_and_added_by_autograd(seed: int) -> Script:
    """A fresh leaf that shares its memory with the parameter is trained beside it."""
    script = _script(seed)

    def body(training: Training) -> None:
        plain(training)
        last = training.model[2].weight
        shadow = last.detach().requires_grad_()
        features = training.model[:2](script.dataset.tensors[0]).detach()
        F.cross_entropy(features @ shadow.T, script.dataset.tensors[1]).backward()
        torch.optim.SGD([shadow], lr=0.1).step()

    script.body = body
    return script


def _add_slopes_of_all_records(training: Training) -> None:
    """Adds the gradient of the mean loss over all records to what was released, through `.data`."""
    parameters = list(training.model.parameters())
    mean = cross_entropy(training.model, *training.script.dataset.tensors).mean()
    for p, g in zip(parameters, torch.autograd.grad(mean, parameters), strict=True):
        p.grad.data.add_(g)


@LOOP.unmeasured
def gradients_changed_through_data(seed: int) -> Script:
    """`.grad.data` leaves the version counter of a released gradient as it is."""
    script = _script(seed)

    def body(training: Training) -> None:
        training.private.backward(training.lot)
        _add_slopes_of_all_records(training)
        training.optimizer.step()

    script.body = body
    return script


@LOOP.unmeasured
def gradients_changed_through_data_once(seed: int) -> Script:
    """The same in a single lot."""
    script = _script(seed)

    def body(training: Training) -> None:
        training.private.backward(training.lot)
        if training.k == 20:
            _add_slopes_of_all_records(training)
        training.optimizer.step()

    script.body = body
    return script
