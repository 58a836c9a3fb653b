"""Predictions of held-out rows, and the scale level, errors and intervals from these."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent
from torch.utils.data import Subset

from fcal._checks import check_number
from fcal._datasets import per_target
from fcal.distributions.family import law_of
from fcal.distributions.functional import cat, has_location, index_select, location_of, with_parameters
from fcal.models.predicting import predict
from fcal.recalibration.location_and_scale import has_scale

_FEWEST_FOLDS = 3  # of two folds, each row has been seen by one model only, and there is nothing to compare
_LARGEST_SHARE = 0.5  # of the squared error; beyond it, disagreement is no small correction any more
_AT_ONCE = 2**24  # numbers in memory at a time: 128 MB
_WILD = 20.0  # robust standard deviations
_ROBUST = 1.4826  # standard deviation of a normal distribution by its median absolute deviation


def cross_predictions(
    dataset: Any, fold: Tensor, full: Any, fold_models: Sequence[Any], *, batch_size: int
) -> tuple[Distribution, Distribution, Tensor]:
    """Predictions for all rows by models that have not seen them, by the model of all rows, and the targets.

    Raises:
        TypeError: A model does not return a distribution.
        ValueError: The rows of the dataset are not in the same order in every pass.
    """
    seen = predict(full, dataset, batch_size=batch_size)
    held = [(fold == number).nonzero().squeeze(1) for number in range(len(fold_models))]
    by_fold = [
        predict(model, Subset(dataset, rows.tolist()), batch_size=batch_size)
        for model, rows in zip(fold_models, held, strict=True)
    ]
    preds = [as_distribution(predicted.pred) for predicted in (seen, *by_fold)]
    names = list(dict.fromkeys(law_of(pred).name for pred in preds))
    if len(names) > 1:
        raise ValueError(f"expected `fit` to return models of one family, got {' and '.join(names)}")
    order = torch.cat(held).argsort()
    check_same_targets(torch.cat([predicted.target for predicted in by_fold])[order], seen.target)
    return as_distribution(index_select(cat(preds[1:]), order)), preds[0], seen.target


def as_distribution(pred: Any) -> Distribution:
    """Refuse a prediction that is no distribution."""
    if not isinstance(pred, Distribution):
        raise TypeError("expected `fit` to return a model of distributions, got one that returns a tensor")
    return pred


def elementwise(pred: Any) -> Distribution:
    """A distribution of vectors with independent coordinates as one of scalars; others are returned unchanged.

    Example:
        >>> from torch.distributions import Independent, Normal
        >>> elementwise(Independent(Normal(torch.zeros(3, 2), 1.0), 1))
        Normal(loc: torch.Size([3, 2]), scale: torch.Size([3, 2]))
    """
    pred = as_distribution(pred)
    while isinstance(pred, Independent):
        pred = pred.base_dist
    return pred


def is_finite(pred: Distribution) -> bool:
    """Whether all parameters of a prediction are finite."""
    return all(bool(value.isfinite().all()) for value in law_of(pred).parameters)


def check_same_targets(target: Tensor, before: Tensor) -> None:
    """Refuse targets that are not those of an earlier pass over the dataset."""
    if target.shape != before.shape or not torch.equal(target.nan_to_num(), before.nan_to_num()):
        raise ValueError("expected `dataset` with its rows in the same order in every pass, got other targets")


# What predictions of held-out rows tell about the model of all rows: its scale level, its errors, its intervals.


def levelled(held_out: Distribution, full: Distribution, fold: Tensor) -> Distribution:
    r"""Held-out predictions with the scale level of the model of all rows.

    The overall level of predicted scales varies from one training to the next, by 5 % and more where the likelihood
    overfits, so the ratio of errors to scales of fold models does not hold for another model. The errors themselves are
    alike. Therefore only the level of the scales is replaced, in each fold k by

    .. math:: \sigma_i \rightarrow \rho_k \sigma_i, \qquad \log \rho_k = \overline{\log s_i - \log \sigma_i}

    with :math:`s_i` the scale that the model of all rows predicts for row i. That model has seen the target of row i,
    so its :math:`s_i` is larger where the noise was large; the mean over a fold hardly depends on this.

    Args:
        held_out: Prediction for each row by the model that has not seen its fold.
        full: Prediction for each row by the model of all rows.
        fold: Fold of each row. Shape ``(n,)``, the first dimension of the predictions.

    Returns:
        The held-out predictions with other scales; unchanged if the family has no scale, or is a mixture.

    Example:
        >>> from torch.distributions import Normal
        >>> held_out, full = Normal(torch.zeros(4), torch.ones(4)), Normal(torch.zeros(4), torch.full((4,), 2.0))
        >>> levelled(held_out, full, torch.tensor([0, 0, 1, 1])).scale
        tensor([2., 2., 2., 2.])
    """
    law = law_of(held_out)
    if law_of(full).name != law.name:
        raise ValueError(f"expected `full` of the family {law.name}, got {law_of(full).name}")
    if not has_scale(law) or law.family.component is not None:
        return held_out
    at = law.family.parameters.index("scale")
    scale, full_scale = (
        law_of(pred).parameters[at].expand(pred.batch_shape + pred.event_shape) for pred in (held_out, full)
    )
    log_ratio = (full_scale.double().log() - scale.double().log()).reshape(len(fold), -1).mean(1)
    folds = int(fold.max()) + 1
    means = log_ratio.new_zeros(folds).index_add(0, fold, log_ratio) / torch.bincount(fold, minlength=folds)
    factor = per_target(means.exp()[fold], scale)
    return with_parameters(held_out, scale=scale * factor.to(scale))


def error_ratio(
    held_out: Distribution,
    target: Tensor,
    fold: Tensor,
    others: Sequence[Distribution],
    *,
    valid_mask: Tensor | None = None,
) -> float:
    r"""Root mean square error of the model of all rows over that of fold models, estimated from their disagreement.

    The squared error of a model of n rows is noise, bias and its own variance :math:`V(n)`; the part of the variance
    that is due to the rows is about proportional to 1/n. A model without one of k folds has :math:`k / (k - 1)` times
    as much of it, so the squared error of the model of all rows is smaller by :math:`V_k / k`. The disagreement of fold
    models estimates :math:`V_k` without further training:

    .. math:: ratio^2 = 1 - \frac{\sum_i V_i / (k \sigma_i^2)}{\sum_i (y_i - \mu_i)^2 / \sigma_i^2}

    with :math:`V_i` the variance of the predictions for row i by the k - 1 models that have seen it. The correction is
    too small rather than too large: models agree more on rows that they have seen than on new ones (entirely, if they
    memorize them), and models that share rows agree more than independent ones, by a factor of k - 1 if the rows were
    the only cause. So it covers only a part of the difference, and for two folds it is zero.

    Args:
        held_out: Prediction for each row by the model that has not seen its fold, :math:`\mu_i` and :math:`\sigma_i`.
        target: Targets, NaN where missing.
        fold: Fold of each row. Shape ``(n,)``.
        others: For each fold, predictions for all rows by the model without that fold.
        valid_mask: True where a target counts; shaped like ``target`` or its rows.

    Returns:
        A number within (0, 1]; 1 for two folds, and for a family without a location in the unit of the target.

    Example:
        >>> from torch.distributions import Normal
        >>> target, fold = torch.tensor([2.0, -2.0, 2.0]), torch.tensor([0, 1, 2])
        >>> others = [Normal(torch.full((3,), mean), 1.0) for mean in (0.0, 0.0, 1.0)]
        >>> held_out = Normal(torch.tensor([0.0, 0.0, 1.0]), 1.0)
        >>> round(error_ratio(held_out, target, fold, others) ** 2, 3)  # 1 - (0.5 + 0.5 + 0) / 3 / (4 + 4 + 1)
        0.963
    """
    folds = len(others)
    if folds < _FEWEST_FOLDS or not has_location(held_out):
        return 1.0
    center = location_of(held_out).expand(target.shape).double()
    counts = counted(target, valid_mask)
    weight = torch.where(counts, held_out.stddev.expand(target.shape).double().square().reciprocal(), 0.0)
    locations = torch.stack([location_of(other).expand(target.shape).double() for other in others])
    unseen = (torch.arange(folds, device=fold.device)[:, None] == fold).reshape(folds, -1, *(1,) * (target.dim() - 1))
    mean = torch.where(unseen, 0.0, locations).sum(0) / (folds - 1)
    variance = torch.where(unseen, 0.0, (locations - mean).square()).sum(0) / (folds - 2)
    errors = (weight * (target.double().nan_to_num() - center).square()).sum()
    share = (weight * variance).sum() / (folds * errors)
    return (1 - share.clamp(0.0, _LARGEST_SHARE)).sqrt().item() if errors.item() > 0 else 1.0


def cv_plus(
    held_out: Distribution,
    target: Tensor,
    fold: Tensor,
    preds: Sequence[Distribution],
    *,
    level: float = 0.9,
    valid_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""CV+ intervals (Barber et al., 2021) of errors in units of the predicted standard deviation.

    The error of every held-out row i, :math:`r_i = |y_i - \mu_{-k(i)}(x_i)| / \sigma_{-k(i)}(x_i)`, is applied to a new
    input by the model that has not seen the row. The interval ends at order statistics of :math:`\mu_{-k(i)}(x) \pm
    \sigma_{-k(i)}(x)\, r_i` over all rows. If rows are exchangeable with new ones, and models do not depend on their
    order, intervals cover at least :math:`2 \cdot level - 1` of new targets, less about 1/k, whatever the distribution
    of the targets; in practice about ``level``. There is no such guarantee for several outputs per row, for rows in
    groups, and for folds that chose their own epoch.

    Args:
        held_out: Prediction for each row by the model that has not seen its fold. Shape ``(n, ...)``.
        target: Targets of the rows, NaN where missing.
        fold: Fold of each row. Shape ``(n,)``.
        preds: For each fold, the prediction for new inputs by the model without that fold. Shape ``(m, ...)``.
        level: Nominal coverage, within (0, 1).
        valid_mask: True where a target counts; shaped like ``target`` or its rows.

    Returns:
        Lower and upper ends, shaped like a prediction; infinite if there are too few rows for the level. The outputs of
        a row, the trailing dimensions, are pooled.

    Example:
        >>> from torch.distributions import Normal
        >>> held_out, new = Normal(torch.zeros(9), 1.0), Normal(torch.tensor([10.0]), torch.tensor([2.0]))
        >>> cv_plus(held_out, torch.arange(9.0), torch.arange(9) % 3, [new] * 3, level=0.8)
        (tensor([-4.]), tensor([24.]))
    """
    check_number("level", level, low=1e-6, high=1 - 1e-6)
    _check_folds(fold, len(target), len(preds))
    center = location_of(held_out)
    counts = counted(target, valid_mask)
    ratio = ((target - center) / held_out.stddev).abs().double().expand(target.shape)
    owner = per_target(fold, target)
    by_fold = [ratio[counts & (owner == number)] for number in range(len(preds))]
    shape = preds[0].batch_shape + preds[0].event_shape
    means = torch.stack([location_of(pred).expand(shape).double().flatten() for pred in preds])
    sigmas = torch.stack([pred.stddev.expand(shape).double().flatten() for pred in preds])
    if not all(bool(values.isfinite().all()) for values in (means, sigmas, *by_fold)):
        raise ValueError("expected predictions with finite means and standard deviations, got others")
    dtype = target.dtype if target.is_floating_point() else means.dtype
    rows = sum(len(ratios) for ratios in by_fold)
    rank = math.floor((1 - level) * (rows + 1) + 1e-9)  # a level such as 0.9 is no binary number
    if not rank:
        return means.new_full(shape, -math.inf, dtype=dtype), means.new_full(shape, math.inf, dtype=dtype)
    low, high = (sign * _lower_ends(sign * means, sigmas, by_fold, rank).reshape(shape) for sign in (1, -1))
    return low.to(dtype), high.to(dtype)


def _check_folds(fold: Tensor, rows: int, folds: int) -> None:
    """Refuse folds that are not those of the models."""
    if fold.is_floating_point() or fold.shape != (rows,):
        raise ValueError(f"expected `fold` of {rows} integers, got {fold.dtype} of shape {tuple(fold.shape)}")
    if int(fold.min()) < 0 or int(fold.max()) != folds - 1:
        numbers = f"{int(fold.min())} to {int(fold.max())} and {folds}"
        raise ValueError(f"expected `fold` from 0 and as many `preds`, got {numbers}")


def _lower_ends(means: Tensor, sigmas: Tensor, by_fold: Sequence[Tensor], rank: int) -> Tensor:
    """The ``rank``-th smallest lower end over the errors of all rows. Shape ``(m,)``."""
    rows = sum(len(ratios) for ratios in by_fold)
    ends = []
    for chunk in torch.arange(means.shape[1]).split(max(1, _AT_ONCE // rows)):
        lower = [
            mean.unsqueeze(1) - sigma.unsqueeze(1) * ratios
            for mean, sigma, ratios in zip(means[:, chunk], sigmas[:, chunk], by_fold, strict=True)
        ]
        ends.append(torch.cat(lower, 1).kthvalue(rank, 1).values)
    return torch.cat(ends)


def counted(target: Tensor, valid_mask: Tensor | None) -> Tensor:
    """Mask of the targets that are finite and, if there is a mask of targets or rows, valid.

    Raises:
        ValueError: The mask has another shape, or is not boolean.

    Example:
        >>> counted(torch.tensor([[1.0, 2.0], [torch.nan, 4.0]]), torch.tensor([True, True])).tolist()
        [[True, True], [False, True]]
    """
    finite = target.isfinite()
    return finite if valid_mask is None else finite & expand_mask(valid_mask, target)


def tame(values: Tensor) -> Tensor:
    """Mask of finite values within 20 robust standard deviations of the median.

    Example:
        >>> tame(torch.tensor([0.0, 1.0, 2.0, 1e6, torch.nan])).tolist()
        [True, True, True, False, False]
    """
    finite = values[values.isfinite()]
    if not len(finite):
        return values.isfinite()
    middle = finite.median()
    spread = _ROBUST * (finite - middle).abs().median()
    return values.isfinite() & ((values - middle).abs() <= _WILD * spread) if bool(spread > 0) else values.isfinite()


def expand_mask(mask: Tensor, target: Tensor) -> Tensor:
    """A mask of rows or of targets, expanded to the shape of the targets."""
    if mask.dtype != torch.bool or mask.shape != target.shape[: mask.dim()]:
        expected = f"booleans of shape {tuple(target.shape)} or its rows"
        raise ValueError(f"expected `valid_mask` of {expected}, got {mask.dtype} of shape {tuple(mask.shape)}")
    return per_target(mask, target)
