"""Assignment of rows, one by one or by group, to folds and to the networks of an ensemble that leave them out."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fcal._checks import check_integer, check_number

_FEWEST_TWICE, _MOST_TWICE = 0.1, 0.5  # of the judged rows, where one network judges a row
_ENOUGH_TWICE = 200  # rows that show how networks disagree
_MOST_JUDGES = 3


def fold_numbers(rows: int, folds: int, *, groups: Sequence[Any] | Tensor | None = None, seed: int = 0) -> Tensor:
    """Fold in which each row is held out.

    Rows are assigned at random. With ``groups``, all rows of a group go to one fold: frames of a sequence, readings of
    a track or houses of a street are dependent, and holding out only some of them would leak information.

    Args:
        rows: Number of rows.
        folds: Number of folds.
        groups: Group of each row, as numbers or strings. Length ``rows``.
        seed: Seed of the assignment.

    Returns:
        Fold numbers from 0 to ``folds - 1``, each of which occurs. Shape ``(rows,)``.

    Raises:
        ValueError: There are fewer rows or groups than folds, or ``groups`` has the wrong length.

    Example:
        >>> fold_numbers(6, 3, groups=["a", "a", "b", "b", "c", "c"]).tolist()
        [1, 1, 2, 2, 0, 0]
    """
    check_integer("rows", rows, at_least=1)
    check_integer("folds", folds, at_least=2)
    generator = torch.Generator().manual_seed(check_integer("seed", seed, at_least=0))
    if groups is None:
        _check_enough(folds, rows, "rows")
        fold = torch.empty(rows, dtype=torch.long)
        fold[torch.randperm(rows, generator=generator)] = torch.arange(rows) % folds
        return fold
    members = group_numbers(groups, rows)
    sizes = torch.bincount(members)
    _check_enough(folds, len(sizes), "groups")
    return assigned(sizes, torch.full((folds,), len(members) / folds), generator)[members]


def left_out_rows(
    rows: int,
    *,
    members: int,
    share: float,
    judges: int = 1,
    groups: Sequence[Any] | Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """Rows that each network of an ensemble leaves out, in a balanced design.

    Every judged row is left out by ``judges`` networks, and all sets of that many networks judge equally many rows. One
    network cannot show how much networks disagree about rows that they have not seen: with ``judges=1``, one in ten
    judged rows is left out by two networks, and up to half of them where they are few (not with ``groups``).

    Args:
        rows: Number of rows.
        members: Number of networks.
        share: Share of the rows that each of them leaves out.
        judges: Number of networks that leave out a judged row, at most 3.
        groups: Group of each row; the rows of a group are left out together. Length ``rows``.
        seed: Seed of the assignment.

    Returns:
        True where a network leaves out a row. Shape ``(members, rows)``.

    Raises:
        ValueError: There would be more rows to judge than there are, a network would have too few rows or groups to
            judge or to train on, or ``groups`` has the wrong length.

    Example:
        >>> left_out = left_out_rows(4400, members=4, share=0.25)
        >>> left_out.sum(1).tolist(), left_out.sum(0).bincount().tolist()  # rows judged by none, one and two networks
        ([1100, 1100, 1100, 1100], [400, 3600, 400])
    """
    check_integer("rows", rows, at_least=1)
    check_integer("members", members, at_least=2, at_most=1000)
    check_integer("judges", judges, at_least=1, at_most=min(_MOST_JUDGES, members - 1))
    check_number("share", share, low=1e-6, high=1 - 1e-6)
    twice = twice_share(members * share * rows) if groups is None else _FEWEST_TWICE
    sets, sizes = _sets_of_judges(members, share, judges, twice if judges == 1 else 0.0)
    generator = torch.Generator().manual_seed(check_integer("seed", seed, at_least=0))
    if groups is None:
        ends = (torch.cumsum(sizes, 0) * rows).round()
        index = torch.empty(rows, dtype=torch.long)
        index[torch.randperm(rows, generator=generator)] = torch.bucketize(torch.arange(rows), ends, right=True)
    else:
        numbers = group_numbers(groups, rows)
        index = assigned(torch.bincount(numbers), sizes * rows, generator)[numbers]
    out = torch.zeros(len(sets), members, dtype=torch.bool)
    for number, judging in enumerate(sets):
        out[number, list(judging)] = True
    left_out = out[index].T.contiguous()
    _check_left_out(left_out, share, "rows" if groups is None else "groups")
    return left_out


def twice_share(slots: float) -> float:
    """Share of the judged rows that two networks leave out, where one network judges a row.

    Args:
        slots: Number of rows that all networks leave out, counted as often as they are.

    Example:
        >>> twice_share(8000), twice_share(100)
        (0.1, 0.5)
    """
    wanted = _ENOUGH_TWICE / (slots - _ENOUGH_TWICE) if slots > _ENOUGH_TWICE else _MOST_TWICE
    return min(max(wanted, _FEWEST_TWICE), _MOST_TWICE)


def _sets_of_judges(members: int, share: float, judges: int, twice: float) -> tuple[list[tuple[int, ...]], Tensor]:
    """Sets of networks that leave out the same rows, the last one empty, and the share of the rows of each.

    ``twice`` is the share of the judged rows that one network more than ``judges`` leaves out.
    """
    judged = members * share / (judges + twice)
    sets, further = (list(itertools.combinations(range(members), count)) for count in (judges, judges + 1))
    sizes = [(1 - twice) * judged / len(sets)] * len(sets)
    if twice:
        sizes += [twice * judged / len(further)] * len(further)
        sets += further
    if judged > 1 + 1e-9:
        largest = (judges + twice) / members
        raise ValueError(
            f"expected `share` at most {largest:.3g} for {members} networks of which {judges} judge a row, "
            f"got {share:g}: more rows to judge than there are"
        )
    return [*sets, ()], torch.tensor([*sizes, max(1 - judged, 0.0)], dtype=torch.float64)


def _check_left_out(left_out: Tensor, share: float, units: str) -> None:
    """Refuse a design in which a network judges no rows, or trains on far fewer than its share."""
    members, rows = left_out.shape
    counts = left_out.sum(1)
    if int(counts.min()) == 0:
        raise ValueError(f"expected {units} for every one of {members} networks to leave out, got too few")
    fewest = rows - int(counts.max())
    if fewest < (1 - share) * rows / 2:
        raise ValueError(
            f"expected `groups` that leave every network about {round((1 - share) * rows)} of {rows} rows to train on, "
            f"got a network with {fewest}: a group is too large to be left out"
        )


def _check_enough(folds: int, count: int, units: str) -> None:
    if count < folds:
        raise ValueError(f"expected `folds` at most the number of {units}, {count}, got {folds}")


def group_numbers(groups: Sequence[Any] | Tensor, rows: int) -> Tensor:
    """Consecutive numbers of groups, from 0.

    Example:
        >>> group_numbers(["b", "a", "b"], 3)
        tensor([1, 0, 1])
    """
    try:
        labels = np.asarray(groups.detach().cpu().tolist() if isinstance(groups, Tensor) else groups)
    except ValueError:
        raise ValueError("expected `groups` with one entry for each row, got entries of several lengths") from None
    if labels.dtype == object and all(isinstance(label, str) for label in labels.ravel()):
        labels = labels.astype(np.str_)  # as pandas has them
    if labels.dtype.kind not in "biufUSM":
        raise TypeError(f"expected `groups` of numbers or strings, got {labels.dtype}")
    if labels.dtype.kind == "f" and bool(np.isnan(labels).any()):
        raise ValueError(f"expected `groups` without NaN, got {int(np.isnan(labels).sum())}")
    if labels.shape != (rows,):
        raise ValueError(f"expected `groups` with one entry for each of {rows} rows, got shape {labels.shape}")
    return torch.from_numpy(np.unique(labels, return_inverse=True)[1])


def assigned(sizes: Tensor, capacities: Tensor, generator: torch.Generator) -> Tensor:
    """Bin of each group: largest groups first, each to the bin with the most room left; ties are random.

    Args:
        sizes: Number of rows of each group. Shape ``(groups,)``.
        capacities: Number of rows that each bin should have. Shape ``(bins,)``.
        generator: Source of randomness.
    """
    order = torch.randperm(len(sizes), generator=generator)
    order = order[sizes[order].argsort(descending=True, stable=True)]
    room = capacities.tolist()
    bin_of = torch.empty(len(sizes), dtype=torch.long)
    for group in order.tolist():
        roomiest = max(range(len(room)), key=room.__getitem__)
        bin_of[group] = roomiest
        room[roomiest] -= int(sizes[group])
    return bin_of
