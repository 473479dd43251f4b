"""What cannot be trained privately as it is gets a message: what was given, what is needed, what to do."""

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import sordino as sd
from sordino.schedules import Cosine, Logarithmic
from tests.problems import cross_entropy, dpsgd, linear, network, private


def with_norm(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), norm, nn.Linear(8, 2))


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm1d(8), nn.BatchNorm1d(8, affine=False), nn.BatchNorm1d(8).requires_grad_(False), nn.SyncBatchNorm(8)],
    ids=["plain", "affine-free", "frozen", "sync"],
)
def test_batchnorm_in_training_mode(norm):
    with pytest.raises(sd.Refusal, match=r"(?s)BatchNorm.*'1'.*GroupNorm"):
        private(with_norm(norm))


def test_batchnorm_with_frozen_statistics_is_fine():
    p = private(with_norm(nn.BatchNorm1d(8).eval()))
    for lot in p.draws(linear(), sd.Poisson(0.3), steps=1):
        p.backward(lot)
    assert isinstance(p.claim(1e-5), sd.Guarantee)


def test_batchnorm_put_back_into_training_mode_in_mid_run():
    model = with_norm(nn.BatchNorm1d(8).eval())
    p = private(model)
    lots = p.draws(linear(), sd.Poisson(0.3), steps=2)
    p.backward(next(lots))
    model.train()
    with pytest.raises(sd.Refusal, match="training mode"):
        p.backward(next(lots))


def test_batchnorm_without_running_statistics_even_in_eval_mode():
    with pytest.raises(sd.Refusal, match="in eval mode too"):
        private(with_norm(nn.BatchNorm1d(8, track_running_stats=False)).eval())


def test_instancenorm_that_tracks_statistics():
    model = nn.Sequential(nn.Conv1d(1, 2, 1), nn.InstanceNorm1d(2, track_running_stats=True))
    with pytest.raises(sd.Refusal, match="track_running_stats=False"):
        sd.Private(model, lambda m, x: m(x).sum((1, 2)), dpsgd())


def test_a_forward_pass_that_writes_to_a_buffer():
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 2)
            self.register_buffer("seen", torch.zeros(6))

        def forward(self, x):
            self.seen += x.detach().mean(0)
            return self.layer(x)

    model = Mean()
    with pytest.raises(sd.Refusal, match="buffer 'seen'"):
        private(model).draws(linear(), sd.Poisson(0.3), steps=1)
    assert not model.seen.any()  # what the probe put there is gone


LOSSES = {
    "scalar": (lambda m, x, y: nn.functional.cross_entropy(m(x), y), "returned a scalar"),
    "two axes": (lambda m, x, y: m(x), r"returned shape \(3, 2\)"),
    "a column": (lambda m, x, y: m(x)[:, :1], r"(?s)returned shape \(3, 1\).*add \.squeeze\(1\) to it"),
    "all tokens in one row": (lambda m, x, y: m(x).flatten(), r"returned shape \(6,\)"),
    "not a tensor": (lambda m, x, y: 1.0, "returned a float"),
    "whole numbers": (lambda m, x, y: y, "floating-point"),
}


@pytest.mark.parametrize(("loss", "message"), LOSSES.values(), ids=LOSSES)
def test_a_loss_that_is_not_one_per_sample(loss, message):
    p = sd.Private(network(), loss, dpsgd())
    with pytest.raises(sd.Refusal, match=message):
        p.draws(linear(), sd.Poisson(0.3), steps=1)


def token_mean(m, x, y):
    """Per-sample sums over the number of tokens in the whole batch."""
    weight = (x[:, 0] > 0).float() + 1
    return cross_entropy(m, x, y) * weight / weight.sum()


def contrastive(m, x, y):
    z = m(x)
    return -torch.log_softmax(z @ z.T, dim=1).diagonal()


def batch_normalised(m, x, y):
    return cross_entropy(m, (x - x.mean(0)) / (x.std(0) + 1), y)


def divided_by_the_batch(m, x, y):
    return cross_entropy(m, x, y) / len(x)


def ranked(m, x, y):
    losses = cross_entropy(m, x, y)
    return losses * (losses >= losses.median())


@pytest.mark.parametrize("loss", [token_mean, contrastive, batch_normalised, divided_by_the_batch, ranked])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_loss_that_couples_the_samples(loss, dropout):
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(dropout), nn.Linear(8, 2))
    torch.manual_seed(3)
    with pytest.raises(sd.Refusal, match="coupled"):
        sd.Private(model, loss, dpsgd()).draws(linear(), sd.Poisson(0.3), steps=1)


def test_dropout_alone_is_not_taken_for_coupling():
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    assert next(private(model).draws(linear(), sd.Poisson(0.3), steps=1)).step == 0


@pytest.mark.parametrize("backend", [sd.per_sample.Loop(), sd.per_sample.Vmap()], ids=["loop", "vmap"])
def test_an_input_without_a_batch_dimension(backend):
    x, y = linear().tensors
    positions = torch.zeros(1, 6)
    with pytest.raises(sd.Refusal, match=r"(?s)\(1, 6\).*expand"):
        backend.per_sample(network(), lambda m, x, p, y: cross_entropy(m, x + p, y), (x, positions, y))


def test_a_scalar_in_a_batch():
    with pytest.raises(sd.Refusal, match="no batch dimension"):
        sd.per_sample.Loop().per_sample(network(), cross_entropy, (linear().tensors[0], torch.tensor(1)))


def test_a_batch_with_text_in_it():
    class Named(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return torch.zeros(6), "name"

    with pytest.raises(sd.Refusal, match="holds a str"):
        private().draws(Named(), sd.Poisson(0.5), steps=1)


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(6), torch.tensor(0)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Stream(), "Shards.from_stream"),
        (linear().tensors, "TensorDataset"),
        (TensorDataset(torch.zeros(0, 6), torch.zeros(0, dtype=torch.long)), "no records"),
    ],
    ids=["stream", "tensors", "empty"],
)
def test_datasets_that_cannot_be_drawn_from(dataset, message):
    with pytest.raises(sd.Refusal, match=message):
        private().draws(dataset, sd.Poisson(0.5), steps=1)


BAD = {
    "negative bound": (lambda: sd.Flat(-1.0), r"bound=-1.0: must be > 0"),
    "zero bound": (lambda: sd.Flat(0), r"bound=0: must be > 0"),
    "nan bound": (lambda: sd.Flat(float("nan")), "bound=nan"),
    "infinite bound where it has no meaning": (lambda: sd.Automatic(float("inf")), "finite"),
    "negative gamma": (lambda: sd.Automatic(1.0, gamma=-1), r"gamma=-1: must be > 0"),
    "zero threshold": (lambda: sd.Global(1.0, 0.0), "threshold=0.0"),
    "one bound infinite": (lambda: sd.Global(float("inf"), 1.0), "both"),
    "no bounds": (lambda: sd.Layerwise([]), "need a bound per tensor"),
    "a bound below zero among good ones": (lambda: sd.Layerwise([1.0, -2.0]), r"bounds\[1\]=-2.0"),
    "a named bound of zero": (lambda: sd.Layerwise({"fc": 0}), r"bounds\['fc'\]=0"),
    "a schedule that starts at zero": (lambda: sd.Scheduled(Cosine(0.0, 1.0, 5)), r"schedule\(0\)=0.0"),
    "a log schedule that ends below zero": (lambda: Logarithmic(1.0, 0.5, 240), "must be < top"),
    "a quantile of one": (lambda: sd.AdaptiveQuantile(1.0, 1.0, 1.0), "strictly between"),
    "negative noise": (lambda: sd.Gaussian(-0.1), "multiplier=-0.1"),
    "infinite noise": (lambda: sd.Gaussian(float("inf")), "finite"),
    "rate zero": (lambda: sd.Poisson(0.0), r"must lie in \(0, 1\]"),
    "rate above one": (lambda: sd.Poisson(250), "expected batch / dataset size"),
    "negative rate": (lambda: sd.Poisson(-0.1), r"must lie in \(0, 1\]"),
    "batch of zero": (lambda: sd.Shuffle(0), "batch_size=0"),
    "seed below zero": (lambda: private(seed=-1), "seed=-1"),
    "delta of one": (lambda: private().claim(1.0), "delta=1.0"),
    "steps zero": (lambda: private().draws(linear(), sd.Poisson(0.1), steps=0), "steps=0"),
    "batch above the dataset": (lambda: private().draws(linear(), sd.FixedSize(65), steps=1), "batch_size=65"),
    "expected batch zero": (
        lambda: private().draws(linear(), sd.Poisson(0.1), steps=1, expected_batch=0),
        "expected_batch=0",
    ),
    "infinite bound with noise": (
        lambda: [
            p.backward(lot)
            for p in [private(query=dpsgd(float("inf")))]
            for lot in p.draws(linear(), sd.Full(), steps=1)
        ],
        "finite bound",
    ),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_numbers_that_make_no_sense(make, message):
    with pytest.raises(ValueError, match=message):
        make()


WRONG = {
    "text for a bound": (lambda: sd.Flat("1"), "must be a number, not str"),
    "a flag for a bound": (lambda: sd.Flat(True), "not bool"),
    "half a step": (lambda: private().draws(linear(), sd.Poisson(0.1), steps=2.5), "whole number"),
    "a bare rate": (lambda: private().draws(linear(), 0.01, steps=1), r"Poisson\(rate=0.01\)"),
    "a model class": (lambda: sd.Private(nn.Linear, cross_entropy, dpsgd()), "torch.nn.Module"),
    "a multiplier for a query": (lambda: sd.Private(network(), cross_entropy, 1.1), "query=1.1"),
    "unknown keyword of a clipping rule": (lambda: sd.Flat(1.0, max_grad_norm=2), "max_grad_norm"),
    "unknown keyword of Private": (lambda: private(noise_multiplier=1.1), "noise_multiplier"),
    "unknown keyword of draws": (lambda: private().draws(linear(), sd.Poisson(0.1), 1, batchsize=3), "batchsize"),
    "a list of events": (lambda: sd.events.Together([sd.events.Gaussian(1.0)]), "must be an event"),
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG)
def test_things_of_the_wrong_kind(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_layerwise_bounds_that_do_not_fit_the_model():
    p = private(query=sd.NoisySum(sd.Layerwise([1.0, 1.0]), sd.Gaussian(1.0)))
    with pytest.raises(ValueError, match="2 bounds for 4 trainable tensors"):
        p.backward(next(p.draws(linear(), sd.Full(), steps=1)))


def test_a_parameter_in_no_group_or_in_two():
    for bounds in ({"0.": 1.0}, {"0.": 1.0, "0.w": 1.0, "2.": 1.0}):
        p = private(query=sd.NoisySum(sd.Layerwise(bounds), sd.Gaussian(1.0)))
        with pytest.raises(ValueError, match="need exactly one"):
            p.backward(next(p.draws(linear(), sd.Full(), steps=1)))


def test_a_model_with_nothing_to_train():
    p = private(network().requires_grad_(False))
    with pytest.raises(sd.Refusal, match="no trainable parameter"):
        p.backward(next(p.draws(linear(), sd.Full(), steps=1)))


def test_a_model_torch_func_cannot_vectorise_is_sent_to_the_loop():
    def loss(m, x, y):
        return cross_entropy(m, x, y) * (2.0 if x.sum().item() > 0 else 1.0)

    p = sd.Private(network(), loss, dpsgd(), backend=sd.per_sample.Vmap())
    with pytest.raises(sd.Refusal):
        p.backward(next(p.draws(linear(), sd.Full(), steps=1)))
    one = next(iter(linear()))
    with pytest.raises(sd.Refusal, match=r"Loop\(\)"):
        sd.per_sample.Vmap().per_sample(network(), loss, tuple(t.unsqueeze(0) for t in one))


def test_complex_and_shapeless_parameters():
    with pytest.raises(sd.Refusal, match="complex"):
        private(nn.Linear(2, 2, dtype=torch.complex64))
    with pytest.raises(sd.Refusal, match="no shape yet"):
        private(nn.LazyLinear(2))


def test_a_state_of_another_kind():
    with pytest.raises(ValueError, match="format"):
        private().load_state_dict({"steps": 3})


def test_a_state_is_not_loaded_over_what_was_released():
    p = private()
    saved = p.state_dict()
    p.backward(next(p.draws(linear(), sd.Full(), steps=1)))
    with pytest.raises(ValueError, match="would forget what was released"):
        p.load_state_dict(saved)


@pytest.mark.parametrize(
    "losses",
    [
        lambda m, x: m(x).detach().square().sum(1),
        lambda m, x: (m(x).argmax(1) == 0).float(),
        torch.no_grad()(lambda m, x: m(x).square().sum(1)),
    ],
)
def test_losses_without_a_gradient_are_refused_before_anything_is_charged(losses):
    private = sd.Private(nn.Linear(3, 2), losses, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
    with pytest.raises(sd.Refusal, match="without a gradient"):
        private.draws(TensorDataset(torch.randn(20, 3)), sd.Poisson(0.5), steps=2)
    assert private.steps == 0
