"""Residual networks with GroupNorm in place of BatchNorm, which mixes the records of a batch.

GroupNorm is that of Wu & He 2018, arXiv:1803.08494. The names of ResNet-18's layers are those of the common ImageNet
checkpoints, so that their weights load (`load_imagenet`).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from sordino.nn.convolutional import require_shape

_GROUPS = 32
_WIDE_GROUPS = 16


class BasicResidualBlock(nn.Module):
    """ResNet's basic block (He et al. 2016, arXiv:1512.03385)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.GroupNorm(_GROUPS, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.GroupNorm(_GROUPS, outputs)
        # The input is brought to the shape of the output where they differ.
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(_GROUPS, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Applies the two convolutions of a residual block and its shortcut."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    """ResNet-18 with the ImageNet stem: 11,181,642 parameters for ten classes; dropout, if any, before the last layer."""

    def __init__(self, channels: int = 3, classes: int = 10, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.GroupNorm(_GROUPS, 64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicResidualBlock(64, 64, 1), BasicResidualBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicResidualBlock(64, 128, 2), BasicResidualBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicResidualBlock(128, 256, 2), BasicResidualBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicResidualBlock(256, 512, 2), BasicResidualBlock(512, 512, 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits of the residual network ResNet-18."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.dropout(self.avgpool(x).flatten(1)))  # type: ignore[no-any-return]


def resnet18(shape: Sequence[int] = (3, 32, 32), classes: int = 10) -> nn.Module:
    """Returns the residual network ResNet-18 for images of any size.

    Args:
        shape: of one record.
        classes: outputs.

    Returns:
        The model, freshly made.

    Examples:
        >>> model = resnet18()
        >>> sum(p.numel() for p in model.parameters())
        11181642

    """
    require_shape(shape, (None, None, None), "resnet18", classes)
    return ResNet18(shape[0], classes)


_DROPOUT = 0.5
"""Torch's own: the listing has the layer and not its number."""


def resnet18_dropout(shape: Sequence[int] = (3, 32, 32), classes: int = 10) -> nn.Module:
    """Returns a residual network with dropout, Resnet18_CIFAR10_Net of Pflaeging 2023 (listing A.3), which drops half
    of its last features in training.

    Args:
        shape: of one record.
        classes: outputs.

    Returns:
        The model, freshly made.

    Examples:
        >>> model = resnet18_dropout()
        >>> sum(p.numel() for p in model.parameters())
        11181642

    """
    require_shape(shape, (None, None, None), "resnet18-dropout", classes)
    return ResNet18(shape[0], classes, _DROPOUT)


class WideResidualBlock(nn.Module):
    """Wide ResNet's pre-activation block (Zagoruyko & Komodakis 2016, arXiv:1605.07146)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(_WIDE_GROUPS, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = nn.GroupNorm(_WIDE_GROUPS, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride != 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """Applies norm, ReLU and convolution of a wide residual block, twice, and its shortcut."""
        # The shortcut branches off after norm and ReLU where the shape changes, else x itself is added.
        y = F.relu(self.norm1(x))
        short = x if self.short is None else self.short(y)
        return self.conv2(F.relu(self.norm2(self.conv1(y)))) + short  # type: ignore[no-any-return]


def wrn16_4(shape: Sequence[int] = (3, 32, 32), classes: int = 10) -> nn.Module:
    """Returns the wide residual network WRN-16-4 of De et al. 2022 for CIFAR-10: 2,748,890 parameters.

    Args:
        shape: of one record.
        classes: outputs.

    Returns:
        The model, freshly made.

    Examples:
        >>> model = wrn16_4()
        >>> sum(p.numel() for p in model.parameters())
        2748890

    """
    require_shape(shape, (None, None, None), "wrn16-4", classes)
    layers: list[nn.Module] = [nn.Conv2d(shape[0], 16, 3, 1, 1, bias=False)]
    # Three groups of two blocks; each group after the first halves the side and doubles the width.
    inputs = 16
    for outputs, stride in ((64, 1), (128, 2), (256, 2)):
        layers += [WideResidualBlock(inputs, outputs, stride), WideResidualBlock(outputs, outputs, 1)]
        inputs = outputs
    head = (nn.GroupNorm(_WIDE_GROUPS, 256), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, classes))
    return nn.Sequential(*layers, *head)
