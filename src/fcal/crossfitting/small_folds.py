"""How much larger the errors of models of fewer rows are, told from how far these models disagree."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal.crossfitting.centers import location_of
from fcal.distributions.law import law_of

_MOST = 0.5  # beyond it, disagreement is no small correction any more


def error_ratio(
    held_out: Distribution,
    target: Tensor,
    others: Sequence[Distribution],
    *,
    valid_mask: Tensor | None = None,
) -> float:
    r"""Root mean square error of the model of all rows over that of fold models, as their disagreement tells it.

    The squared error of a model of n rows is noise, bias and its own variance :math:`V(n)`, of which the part that the
    rows cause is about proportional to 1/n. A model without one of k folds has :math:`k / (k - 1)` times as much of it,
    so that the squared error of the model of all rows is smaller by :math:`V_k / k`. How far fold models disagree tells
    of :math:`V_k` without further training:

    .. math:: ratio^2 = 1 - \frac{\sum_i V_i / (k \sigma_i^2)}{\sum_i (y_i - \mu_i)^2 / \sigma_i^2}, \qquad
        V_i = \frac{1}{2 (k - 1)} \sum_{l \neq k(i)} (\mu_i - \mu_{-l}(x_i))^2

    Of two folds this is all of the difference. Of more, models have rows in common and disagree less: by
    :math:`1 / (k - 1)` of it, were the rows the only cause (the jackknife that leaves out a group multiplies by that).
    But networks also disagree because of first weights and the order of rows, which more rows do not cure. The number
    is therefore a cautious one: it takes away too little rather than too much.

    Args:
        held_out: What the model without a row's fold says of each row, :math:`\mu_i` and :math:`\sigma_i`.
        target: Targets, NaN where missing.
        others: What the model without each fold says of all rows, :math:`\mu_{-l}`.
        valid_mask: True where a target counts; shaped like ``target`` or its rows.

    Returns:
        A number within (0, 1]; 1 for a family without location.

    Example:
        >>> from torch.distributions import Normal
        >>> target = torch.tensor([2.0, -2.0, 2.0, -2.0])
        >>> one, two = Normal(torch.zeros(4), 1.0), Normal(torch.ones(4), 1.0)
        >>> held_out = Normal(torch.tensor([0.0, 0.0, 1.0, 1.0]), 1.0)
        >>> round(error_ratio(held_out, target, [one, two]) ** 2, 3)  # 1 - (1/2 / 2) / 4.5
        0.944
    """
    if law_of(held_out).family.location is None:
        return 1.0
    counts = target.isfinite()
    if valid_mask is not None:
        counts = counts & valid_mask.reshape(valid_mask.shape + (1,) * (target.dim() - valid_mask.dim()))
    center = location_of(held_out).expand(target.shape).double()
    weight = torch.where(counts, held_out.stddev.expand(target.shape).double().square().reciprocal(), 0.0)
    folds = len(others)
    apart = torch.stack([(center - location_of(other).double()).square() for other in others]).sum(0)
    own_variance = apart / (2 * (folds - 1))  # the model of the row's own fold adds nothing to the sum
    errors = (weight * (target.double().nan_to_num() - center).square()).sum()
    share = (weight * own_variance).sum() / (folds * errors)
    return (1 - share.clamp(0.0, _MOST)).sqrt().item() if errors.item() > 0 else 1.0
