"""Local planar guidance: depth of every pixel from a plane for each patch of the image."""

import math

import torch
from torch import Tensor, nn

_LARGEST_TILT = math.pi / 3
_INITIAL_TILT = 0.05  # share of the largest: planes that face the camera
_LEAST_SLOPE = 0.05  # of a ray towards a plane; a ray along the plane would never meet it
_FEWEST_CHANNELS = 8


def local_planar_guidance(normal: Tensor, distance: Tensor, patch: int) -> Tensor:
    r"""Depth at which the rays of the pixels of a patch meet its plane.

    A ray has the direction :math:`(u_i, v_i, 1)`, where :math:`u_i` and :math:`v_i` are the column and row of pixel
    :math:`i` relative to the centre of its patch, in units of the patch:

    .. math:: d_i = \frac{n_4}{n_1 u_i + n_2 v_i + n_3}

    Args:
        normal: Unit normals :math:`(n_1, n_2, n_3)` of the planes. Shape ``(B, 3, h, w)``.
        distance: Distances :math:`n_4` of the planes from the camera. Shape ``(B, h, w)``.
        patch: Width and height of a patch in pixels.

    Returns:
        Depth. Shape ``(B, patch * h, patch * w)``. The denominator is at least 0.05, where depth would otherwise be
        infinite or negative.

    Reference:
        Lee et al., "From big to small: multi-scale local planar guidance for monocular depth estimation", 2019.

    Example:
        >>> facing = torch.tensor([0.0, 0.0, 1.0]).reshape(1, 3, 1, 1)
        >>> local_planar_guidance(facing, torch.full((1, 1, 1), 7.0), 2)
        tensor([[[7., 7.],
                 [7., 7.]]])
    """
    offsets = (torch.arange(patch, device=normal.device, dtype=normal.dtype) + 0.5) / patch - 0.5
    across, down, ahead = (part[:, :, None, :, None] for part in normal.unbind(1))  # row, row in patch, column, ...
    slope = across * offsets + down * offsets.reshape(-1, 1, 1) + ahead
    depth = distance[:, :, None, :, None] / slope.clamp(min=_LEAST_SLOPE)
    return depth.flatten(3, 4).flatten(1, 2)


class PlanarGuidance(nn.Module):
    """Predicts a plane for every pixel of a feature map, and depth at full resolution from the planes.

    Args:
        channels: Channels of the features.
        patch: Pixels of the image per pixel of the features, along each axis.
        initial: Depth before training.

    Shape:
        Features ``(B, channels, h, w)``; result ``(B, 1, patch * h, patch * w)``, as a share of the largest depth.

    Example:
        >>> guidance = PlanarGuidance(16, 4, initial=0.2)
        >>> guidance(torch.zeros(1, 16, 3, 5)).shape
        torch.Size([1, 1, 12, 20])
    """

    def __init__(self, channels: int, patch: int, *, initial: float) -> None:
        super().__init__()
        self.patch = patch
        layers: list[nn.Module] = []
        while channels > _FEWEST_CHANNELS:
            layers += [nn.Conv2d(channels, channels // 2, 1), nn.ELU()]
            channels //= 2
        last = nn.Conv2d(channels, 3, 1)
        last.bias = nn.Parameter(torch.logit(torch.tensor([_INITIAL_TILT, 0.5, initial])))
        self.layers = nn.Sequential(*layers, last)

    def forward(self, features: Tensor) -> Tensor:
        """Depth of every pixel of the image."""
        tilt, turn, distance = self.layers(features).sigmoid().unbind(1)
        tilt, turn = _LARGEST_TILT * tilt, 2 * math.pi * turn
        normal = torch.stack([tilt.sin() * turn.cos(), tilt.sin() * turn.sin(), tilt.cos()], 1)
        return local_planar_guidance(normal, distance, self.patch).unsqueeze(1)
