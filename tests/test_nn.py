"""Models: their published sizes, each trainable privately as it is; batch norm replaced; ImageNet weights by name."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sordino as sd
from sordino import nn as models
from sordino.nn import efficientnet
from sordino.statistics import PCA


def parameters(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (lambda: models.mnist_net(), 209_514),  # the thesis' listing A.1
        (lambda: models.mnist_cnn(), 26_010),  # Opacus' example
        (lambda: models.cifar_net(), 131_466),  # the thesis, Opacus' example
        (lambda: models.resnet18(), 11_181_642),  # ResNet-18 with ten classes
        (lambda: models.resnet18_dropout(), 11_181_642),  # listing A.3 of Pflaeging 2023
        (lambda: models.resnet18(classes=1000), 11_689_512),  # the ImageNet checkpoint
        (lambda: models.wrn16_4(), 2_748_890),  # Zagoruyko & Komodakis: 2.7M
        (lambda: models.logistic_regression((1, 28, 28), 10), 7_850),
        (lambda: models.LSTMClassifier(), 100 * 64 + 4 * 128 * (64 + 128 + 2) + 1290),
        (lambda: models.TransformerClassifier(10), 64 * 1128 + 2 * (12 * 64**2 + 13 * 64) + 2 * 64 + 650),
        (
            lambda: efficientnet.EfficientNetLite0(),
            4_652_008 - 1_281_000 - 21_008,
        ),  # published; no classifier, norms folded
    ],
)
def test_parameter_counts(model, count):
    assert parameters(model()) == count


OTHERWISE = ("point", "resnet18-dropout", "minilm-lora")
"""Models that a test of their own trains."""


@pytest.mark.parametrize("name", [name for name in models.MODELS if name not in OTHERWISE])
def test_every_named_model_trains_privately_with_the_default_engine(name):
    shape = (3, 16, 16) if name in ("cifar-net", "resnet18", "wrn16-4") else (1, 28, 28)
    torch.manual_seed(0)
    trains(models.MODELS[name](shape, 10), torch.rand(4, *shape))


@pytest.mark.parametrize("model", [lambda: models.TransformerClassifier(10), lambda: models.LSTMClassifier()])
def test_sequence_models_train_privately(model):
    torch.manual_seed(0)
    trains(model(), torch.randint(0, 100, (6, 12)))


def test_a_residual_network_with_dropout_trains_with_it_and_is_tested_without():
    torch.manual_seed(0)
    model, x = models.resnet18_dropout((3, 16, 16)), torch.rand(4, 3, 16, 16)
    private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(0.5), sd.Gaussian(1.0)), seed=0)
    for lot in private.draws(torch.utils.data.TensorDataset(x, torch.arange(4)), sd.Full(), steps=1):
        private.backward(lot)
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert isinstance(private.claim(1e-5), sd.Guarantee)
    assert not torch.equal(model(x), model(x))
    assert torch.equal(model.eval()(x), model(x))


def loss_fn(model, x, y):
    return F.cross_entropy(model(x), y, reduction="none")


def trains(model, x):
    """Without noise and with a clip that binds, the gradient is the loop's; every parameter gets one."""
    y = torch.arange(len(x)) % 10
    private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(0.5), sd.Gaussian(0.0)), seed=0)
    data = torch.utils.data.TensorDataset(x, y)
    (lot,) = private.draws(data, sd.Full(), steps=1)
    private.backward(lot)
    slow = copy.deepcopy(model)
    expected = {name: torch.zeros_like(p) for name, p in slow.named_parameters()}
    for i in range(len(x)):
        grads = torch.autograd.grad(loss_fn(slow, x[i : i + 1], y[i : i + 1]).sum(), list(slow.parameters()))
        norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt()
        for name, g in zip(expected, grads, strict=True):
            expected[name] += g * (0.5 / norm).clamp(max=1) / len(x)
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert torch.allclose(p.grad, expected[name], atol=2e-5 * 0.5), name


class Mixed(nn.Module):
    """Batch norms of two kinds, one used twice, with ReLUs in place as a module and as a function."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(inplace=True)
        self.again = nn.Conv2d(12, 12, 3, padding=1)
        self.same = self.norm
        self.head = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))

    def forward(self, x):
        x = self.relu(self.norm(self.conv(x)))
        x = F.relu(self.same(self.again(x)), inplace=True)
        return self.head(x.mean((2, 3)))


def test_batch_norm_is_replaced_everywhere_and_the_model_trains_privately():
    torch.manual_seed(0)
    model = Mixed()
    model.norm.weight.data.uniform_(0.5, 1.5)
    replaced = models.replace_batchnorm(model)
    assert isinstance(model.norm, nn.BatchNorm2d)  # a copy was changed
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in replaced.modules())
    assert replaced.norm is replaced.same
    assert torch.equal(replaced.norm.weight, model.norm.weight)
    assert parameters(replaced) == parameters(model)
    assert set(dict(replaced.named_parameters())) == set(dict(model.named_parameters()))
    with pytest.raises(sd.Refusal, match="BatchNorm"):
        sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
    trains(replaced, torch.rand(6, 3, 8, 8))


def test_a_lone_batch_norm_without_scale_is_replaced_too():
    replaced = models.replace_batchnorm(nn.BatchNorm2d(10, affine=False), groups=4)
    assert isinstance(replaced, nn.GroupNorm)
    assert (replaced.num_groups, replaced.num_channels, replaced.affine) == (2, 10, False)


def imagenet():
    """A checkpoint as it is handed out: ResNet-18 with batch norm's statistics."""
    torch.manual_seed(1)
    weights = models.resnet18(classes=1000).state_dict()
    for name in [n for n in weights if ".bn" in n or n.startswith("bn") or "downsample.1" in n]:
        if name.endswith(".weight"):
            stem = name.removesuffix("weight")
            weights[stem + "running_mean"] = torch.zeros_like(weights[name])
            weights[stem + "running_var"] = torch.ones_like(weights[name])
            weights[stem + "num_batches_tracked"] = torch.tensor(5)
    return weights


def test_imagenet_weights_load_by_name_and_what_did_not_is_said():
    weights, model = imagenet(), models.resnet18()
    said = models.load_imagenet(model, weights)
    assert len(said.loaded) == 60
    assert len(said.statistics) == 60  # three for each of 20 norms
    assert said.another_shape == ("fc.weight", "fc.bias")
    assert said.missing == said.unknown == ()
    assert torch.equal(model.layer2[0].downsample[1].weight, weights["layer2.0.downsample.1.weight"])
    assert "statistics of BatchNorm dropped" in str(said)
    assert "fc.weight" in str(said)


def test_a_checkpoint_of_another_network_is_refused():
    with pytest.raises(ValueError, match="of another network"):
        models.load_imagenet(models.resnet18(), models.mnist_cnn().state_dict())


def test_records_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="records of shape 3 × 32 × 32: mnist-cnn is made for any × 28 × 28"):
        models.mnist_cnn((3, 32, 32))


def test_the_net_behind_a_private_pca_trains_privately():
    torch.manual_seed(0)
    images = torch.rand(6, 1, 5, 5)
    projection = sd.ask(PCA(components=4, noise=sd.Gaussian(1.0)), images, ledger=sd.Ledger(), seed=0)
    trains(models.pca_net(projection), images)


class Reference(nn.Module):
    """A bottleneck with its batch norms unfolded, in evaluation mode."""

    def __init__(self, block, weights, at):
        super().__init__()
        self.block, self.weights, self.at = block, weights, at

    def norm(self, x, name):
        w, b, m, v = (self.weights[f"{name}.{p}"] for p in ("weight", "bias", "running_mean", "running_var"))
        return F.batch_norm(x, m, v, w, b, training=False, eps=1e-3)

    def forward(self, x):
        at, conv = self.at, self.block.depthwise.conv
        y = F.relu6(self.norm(F.conv2d(x, self.weights[f"{at}_expand_conv.weight"]), f"{at}_bn0"))
        y = F.conv2d(
            y, self.weights[f"{at}_depthwise_conv.weight"], padding=conv.kernel_size[0] // 2, groups=y.shape[1]
        )
        y = F.relu6(self.norm(y, f"{at}_bn1"))
        return x + self.norm(F.conv2d(y, self.weights[f"{at}_project_conv.weight"]), f"{at}_bn2")


def published(network):
    """Random weights under the published names and shapes."""
    generator = torch.Generator().manual_seed(0)
    weights = {}

    def layer(module, conv, norm):
        shape = module.conv.weight.shape
        weights[f"{conv}.weight"] = torch.randn(shape, generator=generator) * shape[1:].numel() ** -0.5
        for part in ("weight", "running_var"):
            weights[f"{norm}.{part}"] = 0.5 + torch.rand(shape[0], generator=generator)
        for part in ("bias", "running_mean"):
            weights[f"{norm}.{part}"] = torch.randn(shape[0], generator=generator) * 0.1

    layer(network.stem, "_conv_stem", "_bn0")
    layer(network.head, "_conv_head", "_bn1")
    for i, block in enumerate(network.blocks):
        if block.expand is not None:
            layer(block.expand, f"_blocks.{i}._expand_conv", f"_blocks.{i}._bn0")
        layer(block.depthwise, f"_blocks.{i}._depthwise_conv", f"_blocks.{i}._bn1")
        layer(block.project, f"_blocks.{i}._project_conv", f"_blocks.{i}._bn2")
    return weights


def test_folded_batch_norm_is_batch_norm():
    network = efficientnet.EfficientNetLite0()
    weights = published(network)
    network.load_folded(weights)
    block, x = network.blocks[9], torch.rand(2, 112, 6, 6)
    assert torch.allclose(block(x.clone()), Reference(block, weights, "_blocks.9.")(x), atol=1e-4)
    features = network(torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8))
    assert features.shape == (2, 1280)
    assert features.isfinite().all()
    assert not any(p.requires_grad for p in network.parameters())


def test_the_end_of_the_network_goes_on_from_the_maps_and_trains_privately():
    network = efficientnet.EfficientNetLite0(side=64)
    network.load_folded(published(network))
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    features, maps = network(images), network.compute_maps(images)
    assert maps.shape == (3, efficientnet.MAPS_WIDTH, 2, 2)
    torch.manual_seed(0)
    end = efficientnet.EfficientNetEnd(network, 10)
    assert torch.allclose(end(maps), end.classifier(features), atol=1e-4)
    assert all(p.requires_grad for p in end.parameters())
    trains(end, maps)
    assert not any(p.requires_grad for p in [*network.stem.parameters(), *network.blocks[:-1].parameters()])


@pytest.mark.parametrize(("side", "kernel"), [(32, 3), (33, 3), (20, 5), (7, 5)])
def test_strided_padding_is_more_at_the_end(side, kernel):
    """As TensorFlow's SAME: ⌈side/2⌉ outputs; the weights were trained with it."""
    conv = efficientnet.PaddedConvolution(1, 1, kernel, 2)
    nn.init.ones_(conv.conv.weight)
    nn.init.zeros_(conv.conv.bias)
    outputs = -(-side // 2)
    total = max(0, (outputs - 1) * 2 + kernel - side)
    padded = F.pad(torch.ones(1, 1, side, side), (total // 2, total - total // 2) * 2)
    assert torch.equal(conv(torch.ones(1, 1, side, side)), F.conv2d(padded, conv.conv.weight, stride=2))
    assert conv(torch.ones(1, 1, side, side)).shape[-1] == outputs


def test_weights_that_lack_a_layer_are_refused():
    network = efficientnet.EfficientNetLite0()
    weights = published(network)
    del weights["_blocks.3._bn1.bias"]
    with pytest.raises(ValueError, match=r"lack '_blocks.3._bn1.bias'"):
        network.load_folded(weights)


class WithActivation(nn.BatchNorm2d):
    """Normalises, drops, activates, as the layers of some collections of models do."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.PReLU(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.drop(super().forward(x)))


class Doubled(nn.BatchNorm2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_what_a_subclass_of_batch_norm_does_besides_is_kept_or_refused_by_name():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), WithActivation(8))
    replaced = models.replace_batchnorm(model)
    x = torch.randn(2, 3, 6, 6)
    inner = replaced[0](x)
    assert torch.equal(replaced(x), model[1].act(nn.functional.group_norm(inner, 4, model[1].weight, model[1].bias)))
    assert parameters(replaced) == parameters(model)
    with pytest.raises(sd.Refusal, match=r"(?s)Doubled 'norm'.*by hand"):
        models.replace_batchnorm(nn.Sequential(OrderedDict(norm=Doubled(4))))
    assert isinstance(models.replace_batchnorm(type("Renamed", (nn.BatchNorm1d,), {})(4)), nn.GroupNorm)
