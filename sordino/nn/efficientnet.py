"""EfficientNet-Lite0, frozen, as a source of features, and its end to be fine-tuned (Tan & Le 2019, arXiv:1905.11946).

The Lite variant of 2020 has no squeeze-and-excitation and ReLU6 throughout.

    stem 3×3/2 ─► 16 inverted bottlenecks ─► 1×1 to 1,280 ─► mean over places        input (x − 127)/128, x a byte

Batch norm is folded into the convolution before it, w ← w·γ/√(v + ε), b ← β − m·γ/√(v + ε): it is a constant of a
frozen network. `EfficientNetEnd` has the last bottleneck, the 1×1 convolution and a classifier as trainable layers, with
the norms folded in too, and takes what the frozen layers before it give.

**Privacy:** the weights come from ImageNet, which is taken to be public; each image is mapped by itself. Whether
ImageNet may be called public for the task at hand is the reader's to judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEATURES = 1280
SIDE = 160
TYPICAL = 0.5
"""Root mean square of a feature on photographs, to one figure."""
VERSION = 1
"""A number that goes up when the features change, so that cached ones are not mistaken for them."""

MAPS_WIDTH = 192
"""Channels of the maps before the last bottleneck."""

_NORM_EPSILON = 1e-3
_EXPANSION = 6


@dataclass(frozen=True)
class Stage:
    """Bottlenecks of one width; the first of them has the stride."""

    blocks: int
    kernel: int
    stride: int
    width: int


STAGES = (
    Stage(1, 3, 1, 16),
    Stage(2, 3, 2, 24),
    Stage(2, 5, 2, 40),
    Stage(3, 3, 2, 80),
    Stage(3, 5, 1, 112),
    Stage(4, 5, 2, 192),
    Stage(1, 3, 1, 320),
)
_STEM = 32


class PaddedConvolution(nn.Module):
    """A convolution with bias whose output has ⌈side / stride⌉ points, padded more at the end than at the beginning."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, *, depthwise: bool = False) -> None:
        super().__init__()
        groups = inputs if depthwise else 1
        self.kernel, self.stride = kernel, stride
        even = kernel // 2 if stride == 1 else 0  # what does not depend on the side is the convolution's own
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, even, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        """Pads the input of a convolution of EfficientNet and convolves it."""
        if self.stride > 1:
            # The odd pixel goes to the end, as where the weights were trained; else every map is shifted.
            down, across = (self.missing_padding(side) for side in x.shape[2:])
            x = F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))
        return self.conv(x)  # type: ignore[no-any-return]

    def missing_padding(self, side: int) -> int:
        """Returns how many pixels of padding a side needs."""
        outputs = -(-side // self.stride)
        return max(0, (outputs - 1) * self.stride + self.kernel - side)


class Bottleneck(nn.Module):
    """Widens by 1×1, filters each channel, narrows by 1×1; adds its input where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        # Expand, convolve each channel by itself, project; the input is added where the shapes allow it.
        wide = inputs * expansion
        self.expand = PaddedConvolution(inputs, wide) if expansion > 1 else None
        self.depthwise = PaddedConvolution(wide, wide, kernel, stride, depthwise=True)
        self.project = PaddedConvolution(wide, outputs)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Applies the three convolutions of a bottleneck of EfficientNet, with ReLU6 after the first two."""
        y = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
        y = torch.as_tensor(self.project(F.relu6(self.depthwise(y), inplace=True)))
        # In place is safe: the network is frozen, so no gradient needs `y` as it was.
        return y.add_(x) if self.residual else y


class EfficientNetLite0(nn.Module):
    """Maps (B, 3, H, W) of bytes to (B, 1280); images are resized to `side`, bilinearly."""

    def __init__(self, side: int = SIDE) -> None:
        super().__init__()
        self.side = side
        self.stem = PaddedConvolution(3, _STEM, 3, 2)
        # The first block of a stage has its stride, and only the first stage does not expand.
        blocks, width = [], _STEM
        for number, stage in enumerate(STAGES):
            for k in range(stage.blocks):
                stride, expansion = stage.stride if k == 0 else 1, 1 if number == 0 else _EXPANSION
                blocks.append(Bottleneck(width, stage.width, stage.kernel, stride, expansion))
                width = stage.width
        self.blocks = nn.Sequential(*blocks)
        self.head = PaddedConvolution(width, FEATURES)
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Returns EfficientNet-Lite0's features of images, before the classifier."""
        x = self.blocks[-1](self.compute_maps(images))
        return F.relu6(self.head(x), inplace=True).mean((2, 3))

    @torch.no_grad()
    def compute_maps(self, images: Tensor) -> Tensor:
        """Returns what EfficientNet-Lite0's last bottleneck is given of images, (B, 192, side/32, side/32)."""
        # Pixels from 0 to 255 become about −1 to 1, as in the published training.
        x = images.to(torch.float32)
        if x.shape[2:] != (self.side, self.side):
            x = F.interpolate(x, (self.side, self.side), mode="bilinear", align_corners=False)
        x = x.sub(127).div_(128).contiguous(memory_format=torch.channels_last)
        maps: Tensor = self.blocks[:-1](F.relu6(self.stem(x), inplace=True))
        return maps

    def load_folded(self, weights: Mapping[str, Tensor]) -> None:
        """Loads EfficientNet's weights in the published naming (`_blocks.3._bn1.weight` …), batch norm folded in; all
        must be there.
        """
        # Name the convolution and the norm of every layer as the checkpoint does.
        pairs = [(self.stem, "_conv_stem", "_bn0"), (self.head, "_conv_head", "_bn1")]
        for number, block in enumerate(self.blocks):
            at = f"_blocks.{number}."
            assert isinstance(block, Bottleneck)
            if block.expand is not None:
                pairs.append((block.expand, f"{at}_expand_conv", f"{at}_bn0"))
            pairs.append((block.depthwise, f"{at}_depthwise_conv", f"{at}_bn1"))
            pairs.append((block.project, f"{at}_project_conv", f"{at}_bn2"))
        # Fold each norm into its convolution.
        for module, conv, norm in pairs:
            try:
                weight = weights[f"{conv}.weight"]
                gamma, beta, mean, variance = (
                    weights[f"{norm}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")
                )
            except KeyError as error:
                raise ValueError(f"the weights lack {error}: they are not those of EfficientNet-Lite0") from error
            # w ← w·γ/√(v + ε) and b ← β − m·γ/√(v + ε): norm and convolution are linear, so one convolution does both.
            factor = gamma / (variance + _NORM_EPSILON).sqrt()
            folded = (weight * factor.view(-1, 1, 1, 1)).contiguous(memory_format=torch.channels_last)
            module.conv.weight.data = folded  # this layout is the faster one here
            assert module.conv.bias is not None
            module.conv.bias.copy_(beta - mean * factor)


class EfficientNetEnd(nn.Module):
    """The end of EfficientNet-Lite0 for fine-tuning: its last bottleneck, its 1×1 convolution and a new classifier.

    It takes maps (B, 192, H, W) of the frozen layers, `EfficientNetLite0.compute_maps`.

    Args:
        pretrained: the network that the two pretrained layers are taken from; they are trained here.
        classes: outputs of the classifier, which begins at random.

    """

    def __init__(self, pretrained: EfficientNetLite0, classes: int) -> None:
        super().__init__()
        self.block, self.head = pretrained.blocks[-1], pretrained.head
        self.block.requires_grad_(True)
        self.head.requires_grad_(True)
        self.classifier = nn.Linear(FEATURES, classes)

    def forward(self, maps: Tensor) -> Tensor:
        """Returns a score for each class."""
        scores: Tensor = self.classifier(F.relu6(self.head(self.block(maps))).mean((2, 3)))
        return scores
