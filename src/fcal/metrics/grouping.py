"""Groups that need no column: by predicted sigma, and by place in an image."""

from itertools import pairwise

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_integer

_OCTAVES = 64  # on either side of 1


def sigma_groups(pred: Distribution) -> tuple[Tensor, list[str]]:
    """Groups by predicted sd, one per factor of two, fixed so that shards of a data set agree.

    Args:
        pred: A prediction with an sd.

    Returns:
        The group of every element, shaped like the prediction's samples (without the coordinates of a multivariate
        prediction, which count by their mean variance), and the names of all groups; for ``group`` and
        ``group_names`` of :func:`fcal.evaluate`.

    Example:
        >>> from torch.distributions import Normal
        >>> codes, names = sigma_groups(Normal(torch.zeros(2), torch.tensor([0.3, 5.0])))
        >>> [names[code] for code in codes]
        ['sigma 0.25 to 0.5', 'sigma 4 to 8']
    """
    sigma = pred.stddev.detach().to(torch.float64)
    joint = len(pred.event_shape) and not hasattr(pred, "base_dist")  # Independent coordinates count one by one
    if joint:
        sigma = sigma.square().mean(-1).sqrt()
    octave = torch.frexp(sigma).exponent.to(torch.int64) - 1
    edges = [2.0**k for k in range(-_OCTAVES, _OCTAVES + 1)]
    names = [f"sigma {low:.3g} to {high:.3g}" for low, high in pairwise(edges)]
    names[0], names[-1] = f"sigma below {edges[1]:.3g}", f"sigma above {edges[-2]:.3g}"
    return (octave + _OCTAVES).clamp(0, 2 * _OCTAVES - 1), names


def region_groups(target: Tensor, *, rows: int = 3, columns: int = 3) -> tuple[Tensor, list[str]]:
    """Groups by place in an image: a grid of regions.

    Args:
        target: Images, height and width last. Shape ``(..., H, W)``.
        rows: Number of regions from top to bottom.
        columns: Number of regions from left to right.

    Returns:
        The group of every pixel, shaped like ``target``, and the names of all groups.

    Example:
        >>> codes, names = region_groups(torch.zeros(2, 4), rows=1, columns=2)
        >>> codes.tolist(), names
        ([[0, 0, 1, 1], [0, 0, 1, 1]], ['row 1 of 1, column 1 of 2', 'row 1 of 1, column 2 of 2'])
    """
    check_integer("rows", rows, at_least=1)
    check_integer("columns", columns, at_least=1)
    if target.dim() < 2:
        raise ValueError(f"expected `target` of shape (..., H, W), got {tuple(target.shape)}")
    height, width = target.shape[-2:]
    down = torch.arange(height, device=target.device) * rows // max(height, 1)
    across = torch.arange(width, device=target.device) * columns // max(width, 1)
    codes = down.unsqueeze(1) * columns + across
    names = [f"row {i + 1} of {rows}, column {j + 1} of {columns}" for i in range(rows) for j in range(columns)]
    return codes.expand(target.shape), names
