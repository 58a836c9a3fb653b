"""Assignment of rows to folds."""

import pytest
import torch

from fcal.data import fold_numbers


@pytest.mark.parametrize(("rows", "folds"), [(10, 4), (12, 4), (5, 5), (1001, 7)])
def test_folds_are_as_equal_as_can_be(rows, folds):
    sizes = fold_numbers(rows, folds).bincount(minlength=folds)
    assert sizes.sum() == rows
    assert sizes.max() - sizes.min() <= 1


def test_folds_are_of_the_seed_alone():
    torch.manual_seed(1)
    first = fold_numbers(50, 3, seed=7)
    torch.manual_seed(2)
    assert torch.equal(first, fold_numbers(50, 3, seed=7))
    assert not torch.equal(first, fold_numbers(50, 3, seed=8))


@pytest.mark.parametrize("kind", [torch.tensor, list, lambda groups: [f"track {group}" for group in groups]])
def test_folds_never_part_a_group(kind):
    groups = torch.randint(20, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    fold = fold_numbers(300, 4, groups=kind(groups))
    for group in range(20):
        members = torch.tensor([one == group for one in groups])
        assert len(fold[members].unique()) == 1
    sizes = fold.bincount(minlength=4)
    assert sizes.max() - sizes.min() <= max(groups.count(group) for group in range(20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 3, "folds": 4}, "expected `folds` at most the number of rows, 3, got 4"),
        ({"rows": 3, "folds": 3, "groups": [1, 1, 2]}, "expected `folds` at most the number of groups, 2, got 3"),
        ({"rows": 3, "folds": 1}, "expected `folds` .*>= 2, got 1"),
        ({"rows": 3, "folds": 2, "groups": [1, 2]}, "expected `groups` with one entry for each of 3 rows, got shape"),
    ],
)
def test_folds_refuse(options, message):
    with pytest.raises(ValueError, match=message):
        fold_numbers(options.pop("rows"), options.pop("folds"), **options)
