"""CV+: intervals from the models of all folds, whose coverage does not depend on what the targets' law is."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_number
from fcal.crossfitting.centers import location_of
from fcal.crossfitting.counting import counting

_AT_ONCE = 2**24  # numbers in memory, 128 MB of them


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

    Every held-out row i tells how far off a prediction may be, :math:`r_i = |y_i - \mu_{-k(i)}(x_i)| /
    \sigma_{-k(i)}(x_i)`, and is carried over to a new input by the model that it was held out from. The interval ends
    at order statistics of :math:`\mu_{-k(i)}(x) \pm \sigma_{-k(i)}(x)\, r_i` over all rows. For rows that are
    exchangeable with new ones, and models that do not depend on their order, at least :math:`2 \cdot level - 1` of new
    targets are inside, less about 1/k, whatever their law is; in practice about ``level``. Several outputs of a row,
    rows of groups, and folds that chose their own epoch have no such guarantee.

    Args:
        held_out: What the model without a row's fold says of each row. Shape ``(n, ...)``.
        target: Targets of the rows, NaN where missing.
        fold: Fold of each row. Shape ``(n,)``.
        preds: What the model without each fold says of new inputs. Shape ``(m, ...)``.
        level: Share of targets that they are made for, within (0, 1).
        valid_mask: True where a target counts; shaped like ``target`` or its rows.

    Returns:
        Lower and upper ends, shaped like a prediction; infinite where there are too few rows for the level. Outputs
        of a row, the trailing dimensions, are taken together, as is everything else in this library.

    Example:
        >>> from torch.distributions import Normal
        >>> held_out, new = Normal(torch.zeros(9), 1.0), Normal(torch.tensor([10.0]), torch.tensor([2.0]))
        >>> cv_plus(held_out, torch.arange(9.0), torch.arange(9) % 3, [new] * 3, level=0.8)
        (tensor([-4.]), tensor([24.]))
    """
    check_number("level", level, low=1e-6, high=1 - 1e-6)
    _check_folds(fold, len(target), len(preds))
    center = location_of(held_out)
    counts = counting(target, valid_mask)
    ratio = ((target - center) / held_out.stddev).abs().double().expand(target.shape)
    owner = fold.reshape(-1, *(1,) * (target.dim() - 1)).expand(target.shape)
    by_fold = [ratio[counts & (owner == number)] for number in range(len(preds))]
    shape = preds[0].batch_shape + preds[0].event_shape
    means = torch.stack([location_of(pred).expand(shape).double().flatten() for pred in preds])
    sigmas = torch.stack([pred.stddev.expand(shape).double().flatten() for pred in preds])
    if not all(bool(values.isfinite().all()) for values in (means, sigmas, *by_fold)):
        raise ValueError("expected predictions with finite means and standard deviations, got others")
    kind = target.dtype if target.is_floating_point() else means.dtype
    rows = sum(len(ratios) for ratios in by_fold)
    rank = math.floor((1 - level) * (rows + 1) + 1e-9)  # a level such as 0.9 is no binary number
    if not rank:
        return means.new_full(shape, -math.inf, dtype=kind), means.new_full(shape, math.inf, dtype=kind)
    low, high = (sign * _lower_ends(sign * means, sigmas, by_fold, rank).reshape(shape) for sign in (1, -1))
    return low.to(kind), high.to(kind)


def _check_folds(fold: Tensor, rows: int, folds: int) -> None:
    """Refuse folds that are not those of the models."""
    if fold.is_floating_point() or fold.shape != (rows,):
        raise ValueError(f"expected `fold` of {rows} integers, got {fold.dtype} of shape {tuple(fold.shape)}")
    if int(fold.min()) < 0 or int(fold.max()) != folds - 1:
        shown = f"{int(fold.min())} to {int(fold.max())} and {folds}"
        raise ValueError(f"expected `fold` from 0 and as many `preds`, got {shown}")


def _lower_ends(means: Tensor, sigmas: Tensor, by_fold: Sequence[Tensor], rank: int) -> Tensor:
    """The ``rank``-th smallest of what every row's error makes of a new prediction. Shape ``(m,)``."""
    rows = sum(len(ratios) for ratios in by_fold)
    ends = []
    for place in torch.arange(means.shape[1]).split(max(1, _AT_ONCE // rows)):
        lower = [
            mean.unsqueeze(1) - sigma.unsqueeze(1) * ratios
            for mean, sigma, ratios in zip(means[:, place], sigmas[:, place], by_fold, strict=True)
        ]
        ends.append(torch.cat(lower, 1).kthvalue(rank, 1).values)
    return torch.cat(ends)
