"""Balanced designs of the rows that the networks of an ensemble leave out."""

import itertools
import math

import numpy as np
import pytest
import torch

from fcal.data.folds import left_out_rows

DESIGNS = [(2, 0.5, 1), (3, 0.1, 1), (4, 0.25, 1), (4, 0.2, 1), (10, 0.1, 1), (5, 0.3, 2), (4, 0.5, 2), (6, 0.4, 3)]
ROWS = 20_000


def rounding(members, judges):
    """Largest difference by rounding: one row for every set of networks that a network or a pair is part of."""
    return 1 + sum(math.comb(members, size) for size in {judges, 2 if judges == 1 else judges})


@pytest.mark.parametrize(("members", "share", "judges"), DESIGNS)
def test_every_network_leaves_out_its_share_of_the_rows(members, share, judges):
    left_out = left_out_rows(ROWS, members=members, share=share, judges=judges)
    assert left_out.dtype == torch.bool
    assert left_out.shape == (members, ROWS)
    np.testing.assert_allclose(left_out.sum(1).numpy(), share * ROWS, atol=rounding(members, judges))


@pytest.mark.parametrize(("members", "share", "judges"), DESIGNS)
def test_judged_share_is_that_of_all_networks_over_the_number_of_judges(members, share, judges):
    """M f / m; where one network judges, a tenth of the judged rows has two."""
    left_out = left_out_rows(ROWS, members=members, share=share, judges=judges)
    mean_judges = judges if judges > 1 else 1.1
    expected = members * share / mean_judges * ROWS
    assert int(left_out.any(0).sum()) == pytest.approx(expected, abs=rounding(members, judges))


@pytest.mark.parametrize(("members", "share", "judges"), DESIGNS)
def test_judged_rows_have_their_number_of_judges(members, share, judges):
    counts = left_out_rows(ROWS, members=members, share=share, judges=judges).sum(0)
    judged = counts[counts > 0]
    if judges > 1:
        assert set(judged.tolist()) == {judges}
    else:
        assert set(judged.tolist()) == {1, 2}
        assert (judged == 2).double().mean() == pytest.approx(0.1, abs=0.005)


@pytest.mark.parametrize(("members", "share", "judges"), DESIGNS)
def test_all_pairs_of_networks_judge_equally_many_rows_together(members, share, judges):
    left_out = left_out_rows(ROWS, members=members, share=share, judges=judges).long()
    together = left_out @ left_out.T
    pairs = [int(together[i, j]) for i, j in itertools.combinations(range(members), 2)]
    sets = members - 2 if judges > 2 else 1  # of networks that a pair is part of, each of which may differ by a row
    assert max(pairs) - min(pairs) <= sets
    assert min(pairs) > 0


@pytest.mark.parametrize(("members", "share"), [(4, 0.275), (2, 0.55), (10, 0.11)])
def test_the_largest_share_leaves_no_row_without_a_judge(members, share):
    assert bool(left_out_rows(11_000, members=members, share=share).any(0).all())


def test_left_out_rows_are_of_the_seed_alone():
    torch.manual_seed(1)
    first = left_out_rows(500, members=4, share=0.25, seed=7)
    torch.manual_seed(2)
    assert torch.equal(first, left_out_rows(500, members=4, share=0.25, seed=7))
    assert not torch.equal(first, left_out_rows(500, members=4, share=0.25, seed=8))


def test_left_out_rows_leave_the_random_state_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    left_out_rows(500, members=4, share=0.25, seed=7)
    assert torch.equal(torch.rand(3), expected)


def test_left_out_rows_do_not_depend_on_their_position():
    """The first half of the rows: within 5 sd of 2,500 rows, one false alarm in 1.7 million for each network."""
    left_out = left_out_rows(10_000, members=4, share=0.25)
    first_half = left_out[:, :5000].sum(1)
    sd = math.sqrt(2500 * 0.5 * 0.5)  # at most: of 2,500 rows drawn without replacement, each in the first half or not
    np.testing.assert_allclose(first_half.numpy(), 1250, atol=5 * sd)


@pytest.mark.parametrize("kind", [torch.tensor, list, lambda groups: [f"track {group}" for group in groups]])
@pytest.mark.parametrize("judges", [1, 2])
def test_rows_of_a_group_are_left_out_together(kind, judges):
    groups = torch.randint(40, (600,), generator=torch.Generator().manual_seed(0)).tolist()
    left_out = left_out_rows(600, members=4, share=0.2 * judges, judges=judges, groups=kind(groups))
    for group in range(40):
        own = left_out[:, torch.tensor(groups) == group]
        assert len(own.unique(dim=1).T) == 1
    largest = max(groups.count(group) for group in range(40))
    np.testing.assert_allclose(left_out.sum(1).numpy(), 0.2 * judges * 600, atol=3 * largest)


def test_groups_of_one_row_have_the_shares_of_rows():
    """Within 1 %: a group goes where there is most room."""
    left_out = left_out_rows(4000, members=4, share=0.25, groups=list(range(4000)))
    np.testing.assert_allclose(left_out.sum(1).numpy(), 1000, rtol=0.01)
    assert (left_out.sum(0) == 2).sum().item() == pytest.approx(0.1 * 4000 / 1.1, rel=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": 1}, "expected `members` .*got 1"),
        ({"members": 4, "judges": 4}, "expected `judges` .*got 4"),
        ({"members": 3, "judges": 3}, "expected `judges` .*got 3"),
        ({"members": 4, "judges": 0}, "expected `judges` .*got 0"),
        ({"share": 0.0}, "expected `share` .*got 0"),
        ({"share": 1.0}, "expected `share` .*got 1"),
        (
            {"share": 0.4},
            "expected `share` at most 0.375 for 4 networks of which 1 judge a row, got 0.4: more rows to judge than",
        ),
        ({"share": 0.6, "judges": 2}, "expected `share` at most 0.5 for 4 networks of which 2 judge a row, got 0.6"),
        ({"rows": 0}, "expected `rows` .*got 0"),
        ({"rows": 3}, "expected rows for every one of 4 networks to leave out, got too few"),
        ({"seed": -1}, "expected `seed` >= 0, got -1"),
        ({"groups": [0] * 50 + [1] * 50}, "expected groups for every one of 4 networks to leave out, got too few"),
        ({"groups": [0] * 99}, "expected `groups` with one entry for each of 100 rows, got shape"),
        (
            {"groups": [0] * 90 + list(range(1, 11))},
            "expected `groups` that leave every network about 75 of 100 rows to train on, got a network with 10",
        ),
    ],
)
def test_left_out_rows_refuse(options, message):
    options = {"rows": 100, "members": 4, "share": 0.25} | options
    with pytest.raises(ValueError, match=message):
        left_out_rows(options.pop("rows"), **options)
