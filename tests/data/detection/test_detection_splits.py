"""Splits of images by counts, by groups, by folds and by lists."""

import pytest
from detection_files import annotated_image

from fcal.data.detection import DetectionFrames, fold_splits
from fcal.data.detection.detection_splits import counted_split, grouped_split, listed_split, splits_of


@pytest.mark.parametrize(("rows", "counts"), [(7481, (4500, 500, 2481)), (3475, (2500, 475, 500)), (10, (1, 1))])
def test_counted_parts_are_a_partition_of_the_rows(rows, counts):
    parts = counted_split(rows, counts, seed=3)
    assert sorted(row for part in parts for row in part) == list(range(rows))
    if sum(counts) == rows:
        assert [len(part) for part in parts] == list(counts)


def test_counted_parts_are_random_and_repeat_with_the_seed():
    assert counted_split(100, (60, 40), seed=1) == counted_split(100, (60, 40), seed=1)
    assert counted_split(100, (60, 40), seed=1) != counted_split(100, (60, 40), seed=2)
    assert counted_split(100, (60, 40))[0] != list(range(60))


def test_grouped_parts_have_no_group_in_common_and_about_their_counts():
    groups = [number % 17 for number in range(200)]
    parts = grouped_split(groups, (120, 40, 40), seed=4)
    of_part = [{groups[row] for row in part} for part in parts]
    assert sum(map(len, of_part)) == 17
    assert sorted(row for part in parts for row in part) == list(range(200))
    for part, count in zip(parts, (120, 40, 40), strict=True):
        assert abs(len(part) - count) <= 12  # the size of a group


def test_fewer_groups_than_parts_are_refused():
    with pytest.raises(ValueError, match="expected images of at least 3 groups to split by group, got 2"):
        grouped_split([0, 1, 1], (1, 1, 1))


def test_lists_choose_rows_by_name_in_their_order(tmp_path):
    (tmp_path / "a.txt").write_text("c 1\n\na -1\nc\n")
    assert listed_split(["a", "b", "c"], [tmp_path / "a.txt"]) == [[2, 0]]


def test_list_may_name_images_that_were_left_out(tmp_path):
    (tmp_path / "a.txt").write_text("a\nd\n")
    assert listed_split(["a", "b"], [tmp_path / "a.txt"], left_out=["d"]) == [[0]]
    with pytest.raises(ValueError, match="a.txt with names of the 2 images that were read, got 1 of 2 others"):
        listed_split(["a", "b"], [tmp_path / "a.txt"])


def frames(folder, count):
    images = [annotated_image(folder, f"{number}", group=f"{number % 4}") for number in range(count)]
    return DetectionFrames(images, ["car"])


def test_empty_part_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match="expected images in all of train, validation, test, got none of 3 in validation"
    ):
        splits_of(frames(tmp_path, 3), [[0, 1], [], [2]])


def test_folds_need_as_many_groups(tmp_path):
    with pytest.raises(ValueError, match="expected `folds` at most the number of groups, 4, got 5"):
        fold_splits(frames(tmp_path, 8), 0, folds=5)
    with pytest.raises(ValueError, match="expected `fold` <= 3, got 4"):
        fold_splits(frames(tmp_path, 8), 4, folds=4)
    assert len(fold_splits(frames(tmp_path, 8), 0, folds=4).train) == 4
