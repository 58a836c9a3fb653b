"""BTS with an uncertainty decoder: an image in, a distribution over the depth of every pixel out."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Laplace, LogNormal, Normal

from fcal._checks import check_flag, check_integer, check_number
from fcal._registry import Registry
from fcal.models.depth.decoders import DepthDecoder, UncertaintyDecoder
from fcal.models.depth.encoders import Encoder
from fcal.models.shared_trunk import SharedTrunk

_INITIAL_DEPTH = 3 / 16  # share of the largest depth before training: 15 m of 80 m
_INITIAL_UNCERTAINTY = 0.1  # relative to depth
_LEAST_UNCERTAINTY = 1e-3
_LARGEST_UNCERTAINTY = 1.0
_LEAST_SIGMA = 1e-4  # share of the largest depth: 8 mm of 80 m
_LARGEST_WIDTH = 4096

_DEPTH_IS: Registry[float] = Registry("depth_is")  # variances to subtract from the logarithm of depth
_DEPTH_IS.add("median", 0.0)
_DEPTH_IS.add("mean", 0.5)


def _normal(depth: Tensor, uncertainty: Tensor, head: "DepthHead") -> Normal:
    return Normal(depth, head.sigma(depth, uncertainty), validate_args=False)


def _laplace(depth: Tensor, uncertainty: Tensor, head: "DepthHead") -> Laplace:
    return Laplace(depth, head.sigma(depth, uncertainty) * math.sqrt(0.5), validate_args=False)


def _log_normal(depth: Tensor, uncertainty: Tensor, head: "DepthHead") -> LogNormal:
    loc = depth.log() - _DEPTH_IS[head.depth_is] * uncertainty.square()
    return LogNormal(loc, uncertainty, validate_args=False)


_FAMILIES: Registry[Callable[[Tensor, Tensor, "DepthHead"], Distribution]] = Registry("family")
_FAMILIES.add("normal", _normal)
_FAMILIES.add("laplace", _laplace)
_FAMILIES.add("log-normal", _log_normal)


def family_names() -> list[str]:
    """Names of the families that networks predict.

    Example:
        >>> "log-normal" in family_names()
        True
    """
    return _FAMILIES.names()


class DepthHead(nn.Module):
    r"""Decoders of depth and of its uncertainty on the features of an encoder.

    Depth lies within the range, and the uncertainty :math:`r`, relative to depth, within [0.001, 1], both by a
    generalised sigmoid. The standard deviation is :math:`r d + 10^{-4} d_{max}`, so the likelihood is bounded and its
    gradients are finite. No gradient of the uncertainty reaches depth.

    Args:
        channels: Channels of the encoder's features, from 1/2 to 1/32.
        width: Channels of the depth decoder at 1/16; the uncertainty decoder has half as many.
        family: ``"normal"``, ``"laplace"`` or ``"log-normal"``, whose standard deviation of log-depth is :math:`r`.
        depth_is: What predicted depth is of a log-normal distribution: its ``"median"`` or its ``"mean"``. The other
            families are symmetric, and depth is both.
        max_depth: Largest depth, in metres.
        min_depth: Smallest depth, in metres.
        deterministic: Predict depth alone, without an uncertainty decoder.

    Example:
        >>> features = [torch.zeros(2, 4, 64 // stride, 32 // stride) for stride in (2, 4, 8, 16, 32)]
        >>> DepthHead([4, 4, 4, 4, 4], width=16)(features, (60, 30)).batch_shape
        torch.Size([2, 60, 30])
    """

    def __init__(
        self,
        channels: Sequence[int],
        *,
        width: int = 128,
        family: str = "normal",
        depth_is: str = "median",
        max_depth: float = 80.0,
        min_depth: float = 1e-3,
        deterministic: bool = False,
    ) -> None:
        super().__init__()
        check_integer("width", width, at_least=1, at_most=_LARGEST_WIDTH)
        self.max_depth = check_number("max_depth", max_depth, low=1e-3, high=1e6)
        self.min_depth = check_number("min_depth", min_depth, low=1e-6 * max_depth, high=0.1 * max_depth)
        self._distribution = _FAMILIES[family]
        self.family = family
        _DEPTH_IS[depth_is]
        self.depth_is = depth_is
        self.depth = DepthDecoder(channels, width, initial=_INITIAL_DEPTH)
        self.uncertainty: nn.Module | None = None
        if not check_flag("deterministic", deterministic):
            share = (_INITIAL_UNCERTAINTY - _LEAST_UNCERTAINTY) / (_LARGEST_UNCERTAINTY - _LEAST_UNCERTAINTY)
            self.uncertainty = UncertaintyDecoder(channels, max(width // 2, 1), initial=share)

    def forward(self, features: Sequence[Tensor], size: tuple[int, int]) -> Distribution | Tensor:
        """Predict depth.

        Args:
            features: Features of the encoder at 1/2, 1/4, 1/8, 1/16 and 1/32 of the resolution of the padded image.
            size: Height and width of the image, to which the prediction is cropped.

        Returns:
            A distribution, or depth as a tensor if the head is deterministic; float32 or better. Shape ``(B, H, W)``.
        """
        depth = _within(self.min_depth, self.max_depth, self.depth(features), size)
        if self.uncertainty is None:
            return depth
        uncertainty = _within(_LEAST_UNCERTAINTY, _LARGEST_UNCERTAINTY, self.uncertainty(features), size)
        return self._distribution(depth, uncertainty, self)

    def sigma(self, depth: Tensor, uncertainty: Tensor) -> Tensor:
        """Standard deviation in metres, of relative uncertainty; without gradient for depth."""
        return uncertainty * depth.detach() + _LEAST_SIGMA * self.max_depth


def _within(low: float, high: float, logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Logits of the padded image as numbers within bounds, cropped to the image; half precision is widened."""
    cropped = logits[:, 0, : size[0], : size[1]]
    return low + (high - low) * cropped.to(torch.promote_types(cropped.dtype, torch.float32)).sigmoid()


class BTS(nn.Module):
    """Monocular depth with local planar guidance and, beside it, the uncertainty of every pixel.

    Args:
        encoder: A network of torchvision, one of :func:`encoder_names`.
        weights: Path of a file with pretrained weights of the encoder, ``"imagenet"`` to download them, or an empty
            string for random weights; see :class:`Encoder`.
        freeze: ``"batchnorm"``, ``"encoder"`` or an empty string: what of the encoder is not trained.
        width: Channels of the depth decoder at 1/16; finer resolutions have fewer. The original has 512, which suits a
            large encoder on a GPU.
        family: ``"normal"``, ``"laplace"`` or ``"log-normal"``; see :class:`DepthHead`.
        depth_is: What predicted depth is of a log-normal distribution: its ``"median"`` or its ``"mean"``.
        max_depth: Largest depth, in metres.
        min_depth: Smallest depth, in metres.
        deterministic: Predict depth as a tensor, without an uncertainty decoder.

    Note:
        Before training, depth is about 3/16 of the largest one (15 m of 80 m) everywhere, and its standard deviation
        about a tenth of that. Images have any size; inside, they are padded to multiples of 32 pixels.

    Reference:
        Lee et al., "From big to small: multi-scale local planar guidance for monocular depth estimation", 2019.
        Bhatt et al., "f-Cal: calibrated aleatoric uncertainty estimation from neural networks for robot perception",
        ICRA 2022, for the second decoder.

    Example:
        >>> pred = BTS(width=16).eval()(torch.zeros(2, 3, 40, 50))
        >>> pred.batch_shape
        torch.Size([2, 40, 50])
        >>> 10 < pred.mean.min() < pred.mean.max() < 20
        tensor(True)
    """

    pretrained_option = "weights"  # a finished run, which has all weights, is loaded without this file

    def __init__(
        self,
        *,
        encoder: str = "mobilenet_v2",
        weights: str = "",
        freeze: str = "",
        width: int = 128,
        family: str = "normal",
        depth_is: str = "median",
        max_depth: float = 80.0,
        min_depth: float = 1e-3,
        deterministic: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(encoder, weights=weights, freeze=freeze)
        self.head = DepthHead(
            self.encoder.channels,
            width=width,
            family=family,
            depth_is=depth_is,
            max_depth=max_depth,
            min_depth=min_depth,
            deterministic=deterministic,
        )

    @classmethod
    def with_heads(
        cls, heads: int, *, encoder: str = "mobilenet_v2", weights: str = "", freeze: str = "", **head_options: Any
    ) -> SharedTrunk:
        """Several heads on one encoder, which is run once: an ensemble for little more than one network.

        Args:
            heads: Number of heads, each with weights of its own.
            encoder: A network of torchvision.
            weights: Its pretrained weights.
            freeze: What of it is not trained.
            head_options: Options of every :class:`DepthHead`: ``width``, ``family``, ``max_depth`` and others.

        Example:
            >>> network = BTS.with_heads(3, width=16).eval()
            >>> [pred.batch_shape for pred in network(torch.zeros(1, 3, 32, 40))]
            [torch.Size([1, 32, 40]), torch.Size([1, 32, 40]), torch.Size([1, 32, 40])]
        """
        trunk = Encoder(encoder, weights=weights, freeze=freeze)
        each = [_OfFeatures(DepthHead(trunk.channels, **head_options)) for _ in range(heads)]
        return SharedTrunk(_Features(trunk), each)

    @property
    def depth_is(self) -> str:
        """Predicted depth is the ``"median"`` or the ``"mean"`` of a log-normal distribution."""
        return self.head.depth_is

    @property
    def uncertainty_head(self) -> nn.Module | None:
        """The decoder of the uncertainty; None if the network is deterministic."""
        return self.head.uncertainty

    def forward(self, image: Tensor) -> Distribution | Tensor:
        """Predict the depth of every pixel.

        Args:
            image: Images, normalised by the mean and standard deviation of ImageNet. Shape ``(B, 3, H, W)``.

        Returns:
            A distribution over depth in metres, or a tensor if the network is deterministic. Shape ``(B, H, W)``.
        """
        _check_image(image)
        prediction: Distribution | Tensor = self.head(self.encoder(image), image.shape[-2:])
        return prediction


class _Features(nn.Module):
    """Features of images for the heads of a :class:`SharedTrunk`."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, image: Tensor) -> tuple[Sequence[Tensor], tuple[int, int]]:
        _check_image(image)
        return self.encoder(image), (image.shape[-2], image.shape[-1])


class _OfFeatures(nn.Module):
    """A head on such features."""

    def __init__(self, head: DepthHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: tuple[Sequence[Tensor], tuple[int, int]]) -> Distribution | Tensor:
        prediction: Distribution | Tensor = self.head(*features)
        return prediction


def _check_image(image: Any) -> None:
    if not isinstance(image, Tensor):
        raise TypeError(f"expected `image` a torch.Tensor, got {type(image).__name__}")
    if image.dim() != 4 or image.shape[1] != 3 or 0 in image.shape[2:]:
        raise ValueError(f"expected `image` of shape (B, 3, H, W), got {tuple(image.shape)}")
    if not image.is_floating_point():
        raise TypeError(f"expected `image` of a floating dtype, normalised as for ImageNet, got {image.dtype}")
