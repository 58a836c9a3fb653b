"""Boxes as offsets of their corners from a proposal, linear in each: normal offsets are normal in pixels."""

import torch
from torch import Tensor

OFFSET_WEIGHT = 10.0  # as torchvision weighs centres: offsets of a tenth of a side are 1


class CornerCoder:
    r"""Corners of boxes relative to those of proposals, in tenths of the proposal's width and height.

    .. math:: t_{x_k} = 10 \, \frac{x_k - x_k^p}{w^p}, \quad t_{y_k} = 10 \, \frac{y_k - y_k^p}{h^p}, \quad k = 1, 2

    Centre and logarithmic size, which torchvision regresses, have an exponential function between offset and corner; a
    normal distribution of those is no normal distribution of corners. Method names are torchvision's.

    Example:
        >>> proposal, box = torch.tensor([[10.0, 10.0, 30.0, 50.0]]), torch.tensor([[12.0, 10.0, 30.0, 58.0]])
        >>> CornerCoder().encode_single(box, proposal)
        tensor([[1., 0., 0., 2.]])
    """

    def encode_single(self, boxes: Tensor, proposals: Tensor) -> Tensor:
        """Offsets of boxes. Shapes ``(n, 4)``."""
        return (boxes - proposals) / offset_pixels(proposals)

    def decode_single(self, offsets: Tensor, proposals: Tensor) -> Tensor:
        """Boxes of offsets; several per proposal, one after another. Shapes ``(n, 4 k)`` and ``(n, 4)``."""
        per_box = offsets.reshape(len(offsets), offsets.shape[1] // 4, 4)
        boxes = proposals.unsqueeze(1) + per_box * offset_pixels(proposals).unsqueeze(1)
        return boxes.reshape(offsets.shape)


def offset_pixels(proposals: Tensor) -> Tensor:
    """Pixels of an offset of 1 in each corner coordinate: a tenth of the sides. Shape ``(n, 4)``.

    Example:
        >>> offset_pixels(torch.tensor([[10.0, 10.0, 30.0, 50.0]]))
        tensor([[2., 4., 2., 4.]])
    """
    sides = (proposals[:, 2:] - proposals[:, :2]) / OFFSET_WEIGHT
    return torch.cat([sides, sides], dim=1)
