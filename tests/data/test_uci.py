"""The reader of UCI tables, on made-up ones and, where they are, on the real ones."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from uci_tables import DATA, write_table

from fcal.data.uci import NAMES, read_uci, uci_folder

# Rows and splits as the SOURCE.txt beside the data states them.
SIZES = {
    "concrete": 1030,
    "energy": 768,
    "kin8nm": 8192,
    "naval": 11934,
    "power": 9568,
    "protein": 45730,
    "wine": 1599,
    "yacht": 308,
}


def test_reader_finds_columns_and_splits(tmp_path):
    table = read_uci(write_table(tmp_path), "yacht")
    text = np.loadtxt(tmp_path / "yacht/data/data.txt")
    assert_close(table.x.numpy(), text[:, :3])
    assert_close(table.y.numpy(), text[:, 3])
    assert [len(part) for part in (*table.train, *table.test)] == [54, 54, 6, 6]
    for train, test in zip(table.train, table.test, strict=True):
        assert sorted(torch.cat([train, test]).tolist()) == list(range(60))


def test_reader_takes_the_first_splits_and_a_folder_above(tmp_path):
    write_table(tmp_path / "uci_gal")
    assert len(read_uci(tmp_path, "yacht", splits=1).train) == 1
    assert uci_folder(tmp_path) == tmp_path / "uci_gal"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("data.txt", None, "data.txt"),
        ("data.txt", "1 2 3 4\n1 2 x 4\n", "data.txt of numbers, got"),
        ("data.txt", "1 2 3 4\n1 2 3\n", "data.txt of numbers, got"),
        ("data.txt", "1 2 3 4\n" * 5, "at least 20 rows, got shape (5, 4)"),
        ("data.txt", "1 2 3 4\n" * 20 + "1 nan 3 4\n", "of finite numbers, got others in line 21"),
        ("index_features.txt", "0\n1\n1\n", "index_features.txt of different numbers, got 1 twice"),
        ("index_features.txt", "0\n1\n9\n", "index_features.txt of whole numbers from 0 to 3, got 9"),
        ("index_target.txt", "1\n", "one column that is no feature, got [1]"),
        ("n_splits.txt", "0\n", "one whole number from 1 to 1000, got [0.0]"),
        ("n_splits.txt", "3\n", "index_train_2.txt, got no such file"),
        ("index_train_0.txt", "0\n60\n", "index_train_0.txt of whole numbers from 0 to 59, got 60"),
        ("index_train_0.txt", "0.5\n1\n", "of whole numbers from 0 to 59, got 0.5"),
        ("index_train_0.txt", "", "index_train_0.txt of numbers, got an empty file"),
        ("index_test_0.txt", "1\n", "of rows that are not trained on, got some twice or too few"),
        ("index_test_0.txt", "1\n1\n", "index_test_0.txt of different numbers, got 1 twice"),
    ],
)
def test_reader_refuses_what_does_not_fit(tmp_path, file, text, message):
    write_table(tmp_path)
    path = tmp_path / "yacht/data" / file
    if text is None:
        path.rename(path.with_name("gone.txt"))
        write_table(tmp_path, "concrete")  # or the folder would be none of UCI tables
    else:
        path.write_text(text)
    with pytest.raises(ValueError, match="expected") as caught:
        read_uci(tmp_path, "yacht")
    assert message in str(caught.value)


def test_reader_refuses_unknown_names_and_other_folders(tmp_path):
    with pytest.raises(ValueError, match="expected `datasets` of concrete, .*, yacht, got 'boston'"):
        read_uci(tmp_path, "boston")
    with pytest.raises(ValueError, match="which has none of them"):
        read_uci(tmp_path, "yacht")


@pytest.mark.parametrize("name", NAMES)
def test_real_tables_are_as_described(name):
    if not (DATA / "uci_gal" / NAMES[name]).is_dir():
        pytest.skip(f"no UCI tables in {DATA}; set FCAL_DATA")
    table = read_uci(DATA, name)
    assert len(table.y) == SIZES[name]
    assert len(table.train) == (5 if name == "protein" else 20)
    for train, test in zip(table.train, table.test, strict=True):
        assert len(torch.cat([train, test]).unique()) == SIZES[name]
