"""What is learnt from held-out rows about fold networks, carried over to the network trained on all of them."""

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal.distributions.batching import with_parameters
from fcal.distributions.law import Law, law_of
from fcal.recalibration.location_scale import has_scale


def levelled(held_out: Distribution, full: Distribution, fold: Tensor) -> Distribution:
    r"""Held-out predictions as the network trained on all rows would have made them.

    How large a network's error bars are on the whole varies from one training to the next, by 5 % and more where
    the likelihood overfits: what the errors of fold networks say about *their* error bars is not yet true of another
    network's. The errors themselves are alike, so only the level of the scales is replaced, in each fold k by

    .. math:: \sigma_i \rightarrow \rho_k \sigma_i, \qquad \log \rho_k = \overline{\log s_i - \log \sigma_i}

    with :math:`s_i` the scale that the full network gives to row i. It has seen that row's target, so that its single
    :math:`s_i` are larger where the noise was; their mean hardly knows of it.

    Args:
        held_out: What the network of the row's fold, which has not seen the row, says of each row.
        full: What the network trained on all rows says of each.
        fold: Fold of each row. Shape ``(n,)``, the predictions' first dimension.

    Returns:
        The held-out predictions with other scales; as they are where the family has no scale.

    Example:
        >>> from torch.distributions import Normal
        >>> held_out, full = Normal(torch.zeros(4), torch.ones(4)), Normal(torch.zeros(4), torch.full((4,), 2.0))
        >>> levelled(held_out, full, torch.tensor([0, 0, 1, 1])).scale
        tensor([2., 2., 2., 2.])
    """
    law = law_of(held_out)
    if law_of(full).name != law.name:
        raise ValueError(f"expected `full` of the family {law.name}, got {law_of(full).name}")
    if not has_scale(law):
        return held_out
    here, there = (_scale(law_of(pred)).expand(pred.batch_shape + pred.event_shape) for pred in (held_out, full))
    gap = (there.double().log() - here.double().log()).reshape(len(fold), -1).mean(1)
    folds = int(fold.max()) + 1
    means = gap.new_zeros(folds).index_add(0, fold, gap) / torch.bincount(fold, minlength=folds)
    factor = means.exp()[fold].reshape(-1, *(1,) * (here.dim() - 1))
    return with_parameters(held_out, scale=here * factor.to(here))


def _scale(law: Law) -> Tensor:
    return dict(zip(law.family.parameters, law.parameters, strict=True))["scale"]
