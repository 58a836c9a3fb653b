"""How much larger the errors of models of fewer rows are, told from how far these models disagree."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal.crossfitting.centers import has_location, location_of
from fcal.crossfitting.counting import counting

_FEWEST = 3  # folds: of two, each row has been seen by one model alone, which there is nothing to compare with
_MOST = 0.5  # share of the squared error; beyond it, disagreement is no small correction any more


def error_ratio(
    held_out: Distribution,
    target: Tensor,
    fold: Tensor,
    others: Sequence[Distribution],
    *,
    valid_mask: Tensor | None = None,
) -> float:
    r"""Root mean square error of the model of all rows over that of fold models, as their disagreement tells it.

    The squared error of a model of n rows is noise, bias and its own variance :math:`V(n)`, of which the part that the
    rows cause is about proportional to 1/n. A model without one of k folds has :math:`k / (k - 1)` times as much of it,
    so that the squared error of the model of all rows is smaller by :math:`V_k / k`. How far fold models disagree tells
    of :math:`V_k` without further training:

    .. math:: ratio^2 = 1 - \frac{\sum_i V_i / (k \sigma_i^2)}{\sum_i (y_i - \mu_i)^2 / \sigma_i^2}

    with :math:`V_i` the variance of what the k - 1 models that have seen row i say of it. The number takes away too
    little rather than too much: models agree more on rows that they have seen than on new ones (entirely, if they know
    them by heart), and models that have rows in common agree more than strangers, by a factor of k - 1 were the rows
    the only cause. It is not all of the difference, therefore, and for two folds it is nothing.

    Args:
        held_out: What the model without a row's fold says of each row, :math:`\mu_i` and :math:`\sigma_i`.
        target: Targets, NaN where missing.
        fold: Fold of each row. Shape ``(n,)``.
        others: What the model without each fold says of all rows.
        valid_mask: True where a target counts; shaped like ``target`` or its rows.

    Returns:
        A number within (0, 1]; 1 for two folds, and for a family without a location in the target's unit.

    Example:
        >>> from torch.distributions import Normal
        >>> target, fold = torch.tensor([2.0, -2.0, 2.0]), torch.tensor([0, 1, 2])
        >>> others = [Normal(torch.full((3,), mean), 1.0) for mean in (0.0, 0.0, 1.0)]
        >>> held_out = Normal(torch.tensor([0.0, 0.0, 1.0]), 1.0)
        >>> round(error_ratio(held_out, target, fold, others) ** 2, 3)  # 1 - (0.5 + 0.5 + 0) / 3 / (4 + 4 + 1)
        0.963
    """
    folds = len(others)
    if folds < _FEWEST or not has_location(held_out):
        return 1.0
    center = location_of(held_out).expand(target.shape).double()
    known = counting(target, valid_mask)
    weight = torch.where(known, held_out.stddev.expand(target.shape).double().square().reciprocal(), 0.0)
    said = torch.stack([location_of(other).expand(target.shape).double() for other in others])
    unseen = (torch.arange(folds, device=fold.device)[:, None] == fold).reshape(folds, -1, *(1,) * (target.dim() - 1))
    mean = torch.where(unseen, 0.0, said).sum(0) / (folds - 1)
    variance = torch.where(unseen, 0.0, (said - mean).square()).sum(0) / (folds - 2)
    errors = (weight * (target.double().nan_to_num() - center).square()).sum()
    share = (weight * variance).sum() / (folds * errors)
    return (1 - share.clamp(0.0, _MOST)).sqrt().item() if errors.item() > 0 else 1.0
