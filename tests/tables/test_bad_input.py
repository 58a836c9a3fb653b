"""Every mistake in a file is one line that says what and where."""

import io
import os
import pickle
import re
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fcal.tables import MAX_GROUPS, Columns, TableError, open_predictions

GOOD = {"mean": [0.0, 1.0], "std": [1.0, 2.0], "target": [0.5, 0.5]}


def read(path, **options):
    return list(open_predictions(path, **options))


def refuse(path, match, **options):
    with pytest.raises(TableError) as caught:
        read(path, **options)
    message = str(caught.value)
    assert re.search(match, message), message
    assert "\n" not in message
    assert message.startswith("expected `")
    assert os.fspath(path).split("*")[0] in message
    return message


def csv(tmp_path, text, name="p.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def parquet(tmp_path, columns, name="p.parquet"):
    pq.write_table(pa.table(columns), tmp_path / name)
    return tmp_path / name


def npz(tmp_path, **arrays):
    np.savez(tmp_path / "p.npz", **arrays)
    return tmp_path / "p.npz"


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz", ".npy"])
def test_empty_file_is_refused(tmp_path, suffix):
    refuse(csv(tmp_path, "", f"p{suffix}"), r"with at least one row, got an empty file \(0 bytes\)$")


def test_files_without_rows_are_refused(tmp_path):
    for text in ("mean,std,target", "mean,std,target\n", "mean,std,target\r\n\r\n"):
        refuse(csv(tmp_path, text), r"with at least one row, got only a header$")
    refuse(csv(tmp_path, "mean,std,target" + "\n" * 500_000), r"with at least one row, got none$")
    refuse(csv(tmp_path, "\n \n"), r"with at least one row, got only empty lines$")
    refuse(parquet(tmp_path, {name: pa.array([], pa.float32()) for name in GOOD}), r"with at least one row, got none$")
    refuse(npz(tmp_path, **{name: np.empty(0) for name in GOOD}), r"with at least one row, got none$")


def test_missing_path_and_folder_and_pattern_without_files_are_refused(tmp_path):
    refuse(tmp_path / "absent.csv", r"a file, a folder or a pattern of files, got nothing of that name$")
    csv(tmp_path, "nothing to see", "README.md")
    refuse(tmp_path, r"a folder of prediction files \(\.csv, .*\.npy, .*\.csv\.zst\), got none$")
    refuse(tmp_path / "*.parquet", r"to match files \(\.csv, .*\.npy, .*\.csv\.zst\), got none$")
    refuse(
        tmp_path / "README.md",
        r"with one of the suffixes \.csv, \.tsv, \.jsonl, .*\.npz, \.npy, \.pt, .*\.csv\.gz, \.csv\.zst, got '\.md'$",
    )


def test_file_without_permission_is_refused(tmp_path, monkeypatch):
    path = csv(tmp_path, "mean,std,target\n1,1,1\n")

    def denied(*_):
        raise PermissionError(13, "Permission denied")  # root, who may run this, is never denied anything

    monkeypatch.setattr("pathlib.Path.open", denied)
    refuse(path, r"a file to read, got Permission denied$")


def test_missing_column_is_named_with_those_that_exist(tmp_path):
    path = csv(tmp_path, "Meann,std,target,<script>\n1,1,1,1\n")
    refuse(path, r"with a column 'mean', got 'Meann', 'std', 'target', '<script>' \(did you mean 'Meann'\?\)$")
    path = parquet(tmp_path, {"mean": [1.0], "stdv": [1.0], "target": [1.0]})
    refuse(path, r"with a column 'std', got 'mean', 'stdv', 'target' \(did you mean 'std")
    refuse(parquet(tmp_path, {"mean": [1.0], "std": [1.0]}), r"with a column 'target', got 'mean', 'std'; name yours: ")
    refuse(parquet(tmp_path, GOOD), r"with a column 'grop', got", columns=Columns(group="grop"))
    refuse(parquet(tmp_path, GOOD), r"with a column 'id', got", columns=Columns(cluster="id"))
    wide = {f"column {i}": [1.0] for i in range(1000)}
    assert (
        len(
            refuse(parquet(tmp_path, wide), r"'column 11' and 988 more; name yours: --mean COL --std COL --target COL$")
        )
        < 500
    )


def test_file_without_a_header_is_told_so(tmp_path):
    refuse(csv(tmp_path, "1.5,2,3\n1,2,3\n"), r"got '1.5', '2', '3'; the first line must name the columns$")


def test_missing_columns_of_several_outputs_are_named(tmp_path):
    two = {"mean_0": [1.0], "mean_1": [1.0], "std_0": [1.0], "std_1": [1.0], "target_0": [1.0], "target_1": [1.0]}
    for name in ("std_1", "target_0", "target_1"):
        rest = {key: value for key, value in two.items() if key != name}
        refuse(parquet(tmp_path, rest), rf"with a column '{name}', got")
    refuse(parquet(tmp_path, {**two, "mean_3": [1.0]}), r"with a column 'mean_2', got")
    refuse(parquet(tmp_path, {**two, "std_2": [1.0]}), r"with 2 columns 'std_0' and on, one for each mean, got 3$")
    cov = {"mean_0": [1.0], "mean_1": [1.0], "target_0": [1.0], "target_1": [1.0], "cov_0_0": [1.0], "cov_1_1": [1.0]}
    refuse(parquet(tmp_path, cov), r"with a column 'cov_1_0', got")
    refuse(parquet(tmp_path, {**cov, "cov_0_1": [0.0]}), "family normal where it has covariances", family="laplace")


@pytest.mark.parametrize("column", ["mean", "std", "target"])
def test_text_in_a_column_of_numbers_is_named_by_row_and_value(tmp_path, column):
    for value, shown in (("abc", "'abc'"), ("1.2.3", "'1.2.3'"), ("x" * 99, f"'{'x' * 60}...'"), ("1\n2", r"'1\n2'")):
        rows = [{"mean": "1", "std": "1", "target": "1"} for _ in range(5)]
        rows[3][column] = f'"{value}"'
        text = "mean,std,target\n" + "\n".join(",".join(row.values()) for row in rows)
        refuse(csv(tmp_path, text), rf"column '{column}' of numbers, got {re.escape(shown)} in data row 4$")
    texts = {**{name: ["1", "1"] for name in GOOD}, column: ["1", "<b>"]}
    refuse(parquet(tmp_path, texts), rf"column '{column}' of numbers, got '<b>' in data row 2$")


def test_text_in_a_later_block_of_a_csv_file_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("fcal.tables.csv_format._BLOCK_BYTES", 64)
    lines = ["mean,std,target", *["1,1,1"] * 1000, "1,1,late", *["1,1,1"] * 1000]
    refuse(csv(tmp_path, "\n".join(lines)), r"column 'target' of numbers, got 'late' in data row 1001$", chunk_rows=10)


def test_decimal_commas_are_not_guessed_beside_decimal_points(tmp_path):
    refuse(csv(tmp_path, "mean;std;target\n1.5;1;1\n1,5;1;1\n"), r"column 'mean' of numbers, got '1,5' in data row 2$")


@pytest.mark.parametrize("bad", ["0", "-1", "nan", "", "inf"])
def test_bad_standard_deviations_are_counted_over_the_file(tmp_path, bad):
    rows = ["1,1,1"] * 30
    for row in (6, 20, 29):
        rows[row] = f"1,{bad},1"
    path = csv(tmp_path, "\n".join(["mean,std,target", *rows]))
    wanted, value = ("> 0", bad) if bad in ("0", "-1") else ("finite", bad or "nan")
    refuse(path, rf"column 'std' {wanted}, got {value} in data row 7 \(3 of 30 rows\)$", chunk_rows=4)
    columns = {name: [1.0] * 30 for name in GOOD}
    columns["std"] = [None if row.split(",")[1] == "" else float(row.split(",")[1]) for row in rows]
    for path in (parquet(tmp_path, columns), npz(tmp_path, **{k: np.array(v, float) for k, v in columns.items()})):
        refuse(path, rf"column 'std' {wanted}, got {value} in data row 7 \(3 of 30 rows\)$", chunk_rows=4)


def test_count_says_so_where_the_rest_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr("fcal.tables.csv_format._BLOCK_BYTES", 64)
    rows = ["1,1,1", "1,0,1", *["1,1,1"] * 100, "1,x,1"]
    path = csv(tmp_path, "\n".join(["mean,std,target", *rows]))
    refuse(path, r"column 'std' > 0, got 0 in data row 2 \(1 rows so far\)$", chunk_rows=10)


def test_rows_are_counted_in_each_file(tmp_path):
    csv(tmp_path, "mean,std,target\n1,1,1\n1,1,1\n", "a.csv")
    csv(tmp_path, "mean,std,target\n1,1,1\n1,-3,1\n", "b.csv")
    message = refuse(tmp_path, r"b\.csv` column 'std' > 0, got -3 in data row 2 \(1 of 2 rows\)$")
    assert "a.csv" not in message


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_predictions_that_are_not_finite_are_refused_and_missing_targets_are_not(tmp_path, bad):
    refuse(parquet(tmp_path, {**GOOD, "mean": [1.0, bad]}), rf"column 'mean' finite, got {bad} in data row 2 \(1 of 2")
    path = parquet(tmp_path, {**GOOD, "target": [1.0, bad]})
    if np.isnan(bad):
        assert read(path)[0].target.isnan().tolist() == [False, True]
    else:
        refuse(path, rf"column 'target' finite \(NaN where missing\), got {bad} in data row 2 \(1 of 2 rows\)$")


def test_null_predictions_are_refused_and_null_targets_are_missing(tmp_path):
    refuse(parquet(tmp_path, {**GOOD, "mean": [None, 1.0]}), r"column 'mean' finite, got nan in data row 1")
    assert read(parquet(tmp_path, {**GOOD, "target": [None, 1.0]}))[0].target.isnan().tolist() == [True, False]
    assert read(parquet(tmp_path, {**GOOD, "target": pa.nulls(2)}))[0].target.isnan().all()


def test_sums_that_overflow_are_no_reason_to_refuse(tmp_path):
    huge = np.full(1000, 3e38, np.float32)
    assert len(read(npz(tmp_path, mean=huge, std=huge, target=huge))) == 1


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ([True, False], "bool"),
        ([[1.0], [2.0]], "list<element: double>"),
        (pa.array([1, 2], pa.timestamp("us")), r"timestamp\[us\]"),
    ],
)
def test_columns_of_other_types_are_refused(tmp_path, column, kind):
    refuse(parquet(tmp_path, {**GOOD, "target": column}), rf"column 'target' of numbers, got {kind}$")


def test_broken_parquet_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    whole = parquet(tmp_path, {name: rng.uniform(1, 2, 50_000) for name in GOOD}).read_bytes()
    for cut in (3, 100, len(whole) // 2, len(whole) - 1):
        refuse(csv(tmp_path, whole[:cut], "p.parquet"), r"a whole Parquet file, got an error: ")
    hole = whole[:1000] + bytes(200_000) + whole[201_000:]
    refuse(csv(tmp_path, hole, "p.parquet"), r"a whole Parquet file, got an error: ")
    refuse(csv(tmp_path, "mean,std,target\n1,1,1\n", "p.parquet"), r"a whole Parquet file, got an error: ")


def test_broken_npz_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "p.npz", **{name: rng.uniform(1, 2, 5000) for name in GOOD})
        whole = (tmp_path / "p.npz").read_bytes()
        for cut in (3, len(whole) // 2, len(whole) - 1):
            refuse(csv(tmp_path, whole[:cut], "p.npz"), r"an NPZ archive, got an error: ")
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        refuse(csv(tmp_path, bytes(flipped), "p.npz"), r"an NPZ archive, got an error: ")
    refuse(csv(tmp_path, b"PK\x03\x04" + bytes(100), "p.npz"), r"an NPZ archive, got an error: ")
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
        archive.writestr("mean.txt", "1 2 3")
    refuse(tmp_path / "p.npz", r"an NPZ archive of arrays, got none in it$")
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
        archive.writestr("mean.npy", "not an array")
    refuse(tmp_path / "p.npz", r"a whole array 'mean', got an error: ")


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("something was unpickled",)


def test_pickles_are_refused_and_never_loaded(tmp_path):
    bomb = np.array([Bomb(), Bomb()], dtype=object)
    np.save(tmp_path / "p.npy", bomb, allow_pickle=True)
    refuse(tmp_path / "p.npy", r"shape \(N, 3\), got pickled objects, which are never loaded$")
    refuse(
        npz(tmp_path, **GOOD | {"mean": bomb}), r"array 'mean' of one value per row, got pickled objects, which are n"
    )
    assert len(read(npz(tmp_path, **GOOD, other=bomb))) == 1  # nobody asked for it
    refuse(npz(tmp_path, **GOOD, g=bomb), r"array 'g' .*pickled objects", columns=Columns(group="g"))
    refuse(csv(tmp_path, pickle.dumps(Bomb()), "p.npy"), r"a whole NPY file, got an error: ")
    refuse(csv(tmp_path, pickle.dumps(Bomb()), "p.npz"), r"an NPZ archive, got an error: ")


@pytest.mark.parametrize(
    ("array", "got"),
    [
        (np.ones((5, 2)), r"shape \(5, 2\)"),
        (np.ones(5), r"shape \(5,\)"),
        (np.ones((3, 3, 3)), r"shape \(3, 3, 3\)"),
        (np.array(1.0), "a single value"),
        (np.ones((5, 3), complex), "dtype complex128"),
        (np.full((5, 3), "x"), "dtype <U1"),
        (np.ones((5, 3), bool), "dtype bool"),
        (np.ones(5, [("mean", float), ("std", float)]), "dtype "),
    ],
)
def test_npy_of_another_shape_or_dtype_is_refused(tmp_path, array, got):
    np.save(tmp_path / "p.npy", array)
    refuse(tmp_path / "p.npy", rf"shape \(N, 3\).*, got {got}")


def test_truncated_npy_is_refused(tmp_path):
    buffer = io.BytesIO()
    np.save(buffer, np.ones((100, 3)))
    whole = buffer.getvalue()
    refuse(csv(tmp_path, whole[:-8], "p.npy"), r"a whole array 'p' of shape \(100, 3\), got 8 bytes less$")
    for cut in (1, 9, 50):
        refuse(csv(tmp_path, whole[:cut], "p.npy"), r"a whole NPY file, got an error: ")


def test_npz_arrays_of_other_lengths_or_kinds_are_refused(tmp_path):
    path = npz(tmp_path, mean=np.zeros(3), std=np.ones(2), target=np.zeros(3))
    refuse(path, r"with arrays of one length, got 3 in 'mean', 2 in 'std', 3 in 'target'$")
    refuse(npz(tmp_path, **GOOD | {"std": 1.0}), r"array 'std' of one value per row, got a single value$")
    refuse(npz(tmp_path, **GOOD | {"std": np.ones(2, complex)}), r"array 'std' .*, got dtype complex128$")
    refuse(npz(tmp_path, **GOOD | {"mean": ["a", "b"]}), r"column 'mean' of numbers, got 'a' in data row 1$")
    assert len(read(npz(tmp_path, **GOOD, other=np.zeros(9)))) == 1


def test_columns_of_one_name_are_refused(tmp_path):
    refuse(csv(tmp_path, "mean,std,target,mean\n1,1,1,1\n"), r"with one column of each name, got 'mean' twice$")
    refuse(csv(tmp_path, "mean,std,target, std \n1,1,1,1\n"), r"with one column of each name, got 'std' twice$")
    table = pa.table([pa.array([1.0])] * 4, names=["mean", "std", "target", "mean"])
    pq.write_table(table, tmp_path / "p.parquet")
    refuse(tmp_path / "p.parquet", r"with one column of each name, got 'mean' twice$")
    arrays = {"mean": np.ones((2, 2)), "mean_1": np.ones(2), "std": np.ones((2, 2)), "target": np.ones((2, 2))}
    refuse(npz(tmp_path, **arrays), r"with one column of each name, got 'mean_1' twice$")


def test_ragged_rows_are_named(tmp_path):
    refuse(csv(tmp_path, "mean,std,target\n1,1,1\n\n1,1\n"), r"with 3 values in every row, got 2 in data row 2: '1,1'$")
    refuse(csv(tmp_path, "a,mean,std,target\n" + "1,1,1,1\n" * 9 + "1,1,1,1,1"), r"4 values .*, got 5 in data row 10: ")


def test_text_that_is_not_utf8_is_refused(tmp_path):
    columns = Columns(group="g")
    text = "mean,std,target,g\n1,1,1,a\n1,1,1,café\n"
    refuse(
        csv(tmp_path, text.encode("latin-1")), r"column 'g' in UTF-8, got b'caf\\xe9' in data row 2$", columns=columns
    )
    refuse(csv(tmp_path, text.encode("utf-16")), r"in UTF-8, got UTF-16$", columns=columns)
    refuse(csv(tmp_path, "mean,std,target,né\n1,1,1,1".encode("latin-1")), r"in UTF-8, got .* in its header$")
    assert len(read(csv(tmp_path, text.encode("latin-1")))) == 1  # a column that nobody asked for
    assert read(csv(tmp_path, text), columns=columns)[0].group.names == ("a", "café")
    header = b"\xef\xbb\xbfmean,std,target,caf\xe9\n1,1,1,1\n"
    refuse(csv(tmp_path, header), r"in UTF-8, got b'.*,caf\\xe9' in its header$")


def test_binary_rubbish_is_refused_as_csv(tmp_path):
    rng = np.random.default_rng(0)
    for _ in range(50):
        refuse(csv(tmp_path, rng.bytes(int(rng.integers(1, 500)))), "^expected `")


def test_too_many_groups_are_refused(tmp_path):
    rows = MAX_GROUPS + 1
    columns = {**{name: np.ones(rows) for name in GOOD}, "g": np.arange(rows)}
    for chunk_rows in (1 << 18, 64):
        refuse(
            parquet(tmp_path, columns),
            rf"column 'g' of at most {MAX_GROUPS} groups, got 1001 or more$",
            columns=Columns(group="g"),
            chunk_rows=chunk_rows,
        )
    columns["g"] = np.arange(rows) % MAX_GROUPS
    names = read(parquet(tmp_path, columns), columns=Columns(group="g"), chunk_rows=64)[-1].group.names
    assert len(names) == MAX_GROUPS


def test_rows_without_a_cluster_and_clusters_of_two_kinds_are_refused(tmp_path):
    options = {"columns": Columns(cluster="id")}
    refuse(
        parquet(tmp_path, {**GOOD, "id": [1, None]}), r"column 'id' without nulls, got one in data row 2$", **options
    )
    folder = tmp_path / "both"
    folder.mkdir()
    parquet(folder, {**GOOD, "id": [1, 2]}, "a.parquet")
    parquet(folder, {**GOOD, "id": ["1", "2"]}, "b.parquet")
    refuse(folder, r"b.parquet` column 'id' of whole numbers as in the files before it, got text$", **options)


def test_folder_of_different_columns_is_refused(tmp_path):
    parquet(tmp_path, GOOD, "a.parquet")
    parquet(tmp_path, {**GOOD, "g": [1, 2]}, "b.parquet")
    refuse(tmp_path, r"b.parquet` with the columns of a.parquet, got 'g' too$")
    (tmp_path / "b.parquet").unlink()
    csv(tmp_path, "mean,std\n1,1\n", "c.csv")
    refuse(tmp_path, r"c.csv` with a column 'target', got 'mean', 'std'; name yours: ")


def test_covariances_must_be_symmetric_and_positive_definite(tmp_path):
    good = {f"{name}_{i}": [0.0] * 3 for name in ("mean", "target") for i in range(2)}
    good |= {"cov_0_0": [1.0] * 3, "cov_0_1": [0.5] * 3, "cov_1_0": [0.5] * 3, "cov_1_1": [1.0] * 3}
    path = parquet(tmp_path, good | {"cov_0_1": [0.5, 0.5, 0.4]})
    refuse(path, r"'cov_0_0 to cov_1_1' a symmetric matrix, got \[1, 0.4, 0.5, 1\] in data row 3 \(1 of 3 rows\)$")
    path = parquet(tmp_path, good | {"cov_1_1": [1.0, 0.25, 0.1]})
    refuse(path, r"a positive definite matrix, got .* in data row 2 \(2 of 3 rows\)$")
    refuse(parquet(tmp_path, good | {"cov_1_1": [1.0, np.nan, 1.0]}), r"column 'cov_1_1' finite, got nan in data row 2")


def test_quantiles_must_rise(tmp_path):
    columns = {"q05": [0.0, 1.0, 1.0], "q50": [1.0, 0.5, 1.0], "q95": [2.0, 2.0, 2.0], "target": [0.0] * 3}
    message = refuse(
        parquet(tmp_path, columns), r"strictly rising from level to level.* in data row 2 \(2 of 3 rows\)$"
    )
    assert "[1, 0.5, 2]" in message


def test_names_of_quantiles_must_be_levels(tmp_path):
    for name in ("q975", "q0", "q100"):
        columns = {"q05": [0.0], name: [1.0], "target": [0.0]}
        refuse(parquet(tmp_path, columns), rf"with per cent within \(0, 100\).* as q97.5, got '{name}'$")
    refuse(
        parquet(tmp_path, {"q5": [0.0], "q05": [1.0], "target": [0.0]}), r"one column of each quantile, got 'q5' and"
    )
    refuse(parquet(tmp_path, {"q05": [0.0], "target": [0.0]}), r"with a column 'q\*', got 'q05', 'target'")


def test_options_are_checked():
    with pytest.raises(TypeError, match=r"^expected `mean` a column name, got None$"):
        Columns(mean=None)
    with pytest.raises(ValueError, match=r"^expected `quantiles` a pattern with one star, as 'q\*', got 'q'$"):
        Columns(quantiles="q")
    with pytest.raises(ValueError, match=r"^expected `chunk_rows` >= 1, got 0$"):
        open_predictions("absent.csv", chunk_rows=0)


def damaged(seed, rng):
    """A file with a few bytes changed, lost or added."""
    data = bytearray(seed)
    for _ in range(rng.integers(1, 6)):
        place, kind = int(rng.integers(len(data))), rng.integers(4)
        if kind == 0:
            data[place] = int(rng.integers(256))
        elif kind == 1:
            data[place] ^= 1 << int(rng.integers(8))
        elif kind == 2 and len(data) > 30:
            del data[place : place + int(rng.integers(1, 20))]
        else:
            data[place:place] = bytes(rng.choice(list(b'",;\n\r\t\0\xff'), 3).tolist())
    return bytes(data)


@pytest.mark.parametrize("name", ["p.csv", "p.parquet", "p.npz", "p.npy"])
def test_damaged_files_are_read_or_refused_in_one_line(tmp_path, name):
    rng = np.random.default_rng(0)
    columns = {name: rng.uniform(1, 2, 40) for name in GOOD} | {"g": np.array(["a", "b"] * 20)}
    parquet(tmp_path, columns)
    npz(tmp_path, **columns)
    np.save(tmp_path / "p.npy", rng.uniform(1, 2, (40, 3)))
    rows = zip(*columns.values(), strict=True)
    csv(tmp_path, "\n".join(["mean;std;target;g", *(f'{m};{s};{t};"{g}"' for m, s, t, g in rows)]))
    seed, refused = (tmp_path / name).read_bytes(), []
    options = {"columns": Columns(group=None if name == "p.npy" else "g"), "chunk_rows": 17}
    for _ in range(400):
        path = csv(tmp_path, damaged(seed, rng), name)
        try:
            assert all((chunk.pred.stddev > 0).all() for chunk in read(path, **options))
        except TableError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert all(re.fullmatch(r"expected `[^\n]{1,1000}", message) for message in refused)


def test_text_that_is_not_utf8_is_refused_in_parquet(tmp_path):
    bad = pa.array([b"1", b"\xff"]).cast(pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, bad.buffers())
    refuse(parquet(tmp_path, {**GOOD, "mean": text}), r"column 'mean' of numbers, got b'\\xff' in data row 2$")
    refuse(parquet(tmp_path, {**GOOD, "g": text}), r"column 'g' of labels, got .*string", columns=Columns(group="g"))
