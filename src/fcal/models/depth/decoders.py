"""Decoders: from the features of an encoder to one number per pixel, for depth and for its uncertainty."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fcal.models.depth.planar_guidance import PlanarGuidance

_DILATIONS = (3, 6, 12, 18, 24)
_FEWEST_CHANNELS = 8
_SMALL_WEIGHT = 1e-2  # of the last layer, which then starts at its bias


def channels_of(width: int, share: int) -> int:
    """Channels of a layer that has a share of the width of the decoder.

    Example:
        >>> channels_of(64, 4), channels_of(64, 16)
        (16, 8)
    """
    return max(width // share, _FEWEST_CHANNELS)


def convolution(channels: int, out: int, *, size: int = 3, dilation: int = 1) -> nn.Sequential:
    """A convolution, batch norm and ELU; the resolution is kept."""
    padding = dilation * (size // 2)
    return nn.Sequential(
        nn.Conv2d(channels, out, size, padding=padding, dilation=dilation, bias=False), nn.BatchNorm2d(out), nn.ELU()
    )


class UpStage(nn.Module):
    """Doubles the resolution, and joins the result with features of the encoder.

    Args:
        channels: Channels of the features to be enlarged.
        beside: Channels of the features to join, together.
        out: Channels of the result.

    Example:
        >>> UpStage(8, 3, 4)(torch.zeros(1, 8, 2, 2), torch.zeros(1, 3, 4, 4)).shape
        torch.Size([1, 4, 4, 4])
    """

    def __init__(self, channels: int, beside: int, out: int) -> None:
        super().__init__()
        self.enlarge = convolution(channels, out)
        self.join = convolution(out + beside, out) if beside else nn.Identity()

    def forward(self, features: Tensor, *beside: Tensor) -> Tensor:
        """Features of twice the resolution."""
        enlarged = self.enlarge(F.interpolate(features, scale_factor=2.0, mode="nearest"))
        joined: Tensor = self.join(torch.cat([enlarged, *beside], 1))
        return joined


class DenseASPP(nn.Module):
    """Atrous spatial pyramid pooling, each of whose dilated convolutions sees the results of those before it.

    Args:
        channels: Channels of the features.
        out: Channels of the result and of every dilated convolution.
        dilations: Dilations, in order.

    Reference:
        Yang et al., "DenseASPP for semantic segmentation in street scenes", CVPR 2018.

    Example:
        >>> DenseASPP(8, 4)(torch.zeros(1, 8, 5, 7)).shape
        torch.Size([1, 4, 5, 7])
    """

    def __init__(self, channels: int, out: int, dilations: Sequence[int] = _DILATIONS) -> None:
        super().__init__()
        self.branches = nn.ModuleList()
        for dilation in dilations:
            branch = nn.Sequential(convolution(channels, 2 * out, size=1), convolution(2 * out, out, dilation=dilation))
            self.branches.append(branch)
            channels += out
        self.join = convolution(channels, out)

    def forward(self, features: Tensor) -> Tensor:
        """Features of the same resolution, with a larger receptive field."""
        for branch in self.branches:
            features = torch.cat([features, branch(features)], 1)
        joined: Tensor = self.join(features)
        return joined


def last_layer(channels: int, initial: float) -> nn.Conv2d:
    """A convolution to one channel whose values start near the logit of ``initial``."""
    layer = nn.Conv2d(channels, 1, 3, padding=1)
    nn.init.normal_(layer.weight, std=_SMALL_WEIGHT)
    layer.bias = nn.Parameter(torch.logit(torch.tensor([initial])))
    return layer


class DepthDecoder(nn.Module):
    """Decoder of BTS: dense ASPP, planar guidance at 1/8, 1/4 and 1/2, and their fusion at full resolution.

    Args:
        channels: Channels of the encoder's features, from 1/2 to 1/32.
        width: Channels at 1/16; finer resolutions have fewer.
        initial: Share of the largest depth before training.

    Shape:
        Result ``(B, 1, H, W)``: logits of depth as a share of the largest one.

    Reference:
        Lee et al., "From big to small: multi-scale local planar guidance for monocular depth estimation", 2019.

    Example:
        >>> features = [torch.zeros(2, 4, 64 // stride, 32 // stride) for stride in (2, 4, 8, 16, 32)]
        >>> DepthDecoder([4, 4, 4, 4, 4], 16, initial=0.2)(features).shape
        torch.Size([2, 1, 64, 32])
    """

    def __init__(self, channels: Sequence[int], width: int, *, initial: float) -> None:
        super().__init__()
        half, quarter, eighth, sixteenth, last = channels
        wide, middle, narrow, narrower, narrowest = (channels_of(width, share) for share in (1, 2, 4, 8, 16))
        self.to_sixteenth = UpStage(last, sixteenth, wide)
        self.to_eighth = UpStage(wide, eighth, middle)
        self.pyramid = DenseASPP(middle, narrow)
        self.guide_eighth = PlanarGuidance(narrow, 8, initial=initial)
        self.to_quarter = UpStage(narrow, quarter + 1, narrow)
        self.guide_quarter = PlanarGuidance(narrow, 4, initial=initial)
        self.to_half = UpStage(narrow, half + 1, narrower)
        self.guide_half = PlanarGuidance(narrower, 2, initial=initial)
        self.to_full = UpStage(narrower, 0, narrowest)
        self.finest = last_layer(narrowest, initial)
        self.fuse = convolution(narrowest + 4, narrowest)
        self.last = last_layer(narrowest, initial)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Logits of depth."""
        half, quarter, eighth, sixteenth, last = features
        x = self.pyramid(self.to_eighth(self.to_sixteenth(F.relu(last), sixteenth), eighth))
        by_eighth = self.guide_eighth(x)
        x = self.to_quarter(x, quarter, by_eighth[:, :, ::4, ::4])
        by_quarter = self.guide_quarter(x)
        x = self.to_half(x, half, by_quarter[:, :, ::2, ::2])
        by_half = self.guide_half(x)
        x = self.to_full(x)
        x = self.fuse(torch.cat([x, self.finest(x).sigmoid(), by_half, by_quarter, by_eighth], 1))
        logits: Tensor = self.last(x)
        return logits


class UncertaintyDecoder(nn.Module):
    """A second, plainer decoder on the same features: enlarged stage by stage, without planes.

    Args:
        channels: Channels of the encoder's features, from 1/2 to 1/32.
        width: Channels at 1/16; finer resolutions have fewer.
        initial: Relative uncertainty before training.

    Shape:
        Result ``(B, 1, H, W)``: logits of the uncertainty.

    Example:
        >>> features = [torch.zeros(2, 4, 64 // stride, 32 // stride) for stride in (2, 4, 8, 16, 32)]
        >>> UncertaintyDecoder([4, 4, 4, 4, 4], 16, initial=0.1)(features).shape
        torch.Size([2, 1, 64, 32])
    """

    def __init__(self, channels: Sequence[int], width: int, *, initial: float) -> None:
        super().__init__()
        beside = (*reversed(channels[:-1]), 0)
        outs = [channels_of(width, 2**stage) for stage in range(len(beside))]
        self.stages = nn.ModuleList(map(UpStage, [channels[-1], *outs[:-1]], beside, outs))
        self.last = last_layer(outs[-1], initial)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Logits of the uncertainty."""
        *finer, last = features
        x = F.relu(last)
        for stage, beside in zip(self.stages, [*([feature] for feature in reversed(finer)), []], strict=True):
            x = stage(x, *beside)
        logits: Tensor = self.last(x)
        return logits
