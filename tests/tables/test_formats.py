"""The same rows come out of every format, layout and cut."""

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal

from fcal.distributions import QuantileLaw
from fcal.tables import Columns, open_predictions
from fcal.tables.numpy_format import ArrayFile

RNG = np.random.default_rng(0)
N = 1000
DATA = {"mean": RNG.normal(size=N), "std": RNG.uniform(0.5, 2, N), "target": RNG.normal(size=N)}


def write_csv(path, data=DATA, delimiter=","):
    rows = zip(*(column.tolist() for column in data.values()), strict=True)
    path.write_text("\n".join([delimiter.join(data), *(delimiter.join(map(str, row)) for row in rows)]) + "\n")


def write(path, data=DATA):
    if path.suffix in (".csv", ".tsv"):
        write_csv(path, data, "\t" if path.suffix == ".tsv" else ",")
    elif path.suffix == ".npz":
        np.savez(path, **data)
    elif path.suffix == ".npy":
        np.save(path, np.stack(list(data.values()), 1))
    else:
        pq.write_table(pa.table(data), path, row_group_size=300)
    return path


def joined(source):
    chunks = list(source)
    mean, std = (torch.cat([getattr(c.pred, a) for c in chunks]) for a in ("mean", "stddev"))
    return mean, std, torch.cat([c.target for c in chunks])


def assert_is_data(source, data=DATA):
    for found, name in zip(joined(source), ("mean", "std", "target"), strict=True):
        np.testing.assert_array_equal(found.numpy(), data[name])


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".pq", ".npz", ".npy", ".CSV"])
@pytest.mark.parametrize("chunk_rows", [1 << 18, 7, 1000])
def test_every_format_gives_the_same_rows_in_chunks_of_any_size(tmp_path, suffix, chunk_rows):
    path = write(tmp_path / "p.csv").rename(tmp_path / "p.CSV") if suffix == ".CSV" else write(tmp_path / f"p{suffix}")
    source = open_predictions(path, chunk_rows=chunk_rows)
    assert_is_data(source)
    assert_is_data(source)  # and again
    sizes = [len(chunk) for chunk in source]
    assert max(sizes) <= chunk_rows
    assert [chunk.first_row for chunk in source] == list(np.cumsum([0, *sizes[:-1]]))


def test_rows_are_known_where_a_format_says_so(tmp_path):
    known = {s: open_predictions(write(tmp_path / f"p{s}")).rows for s in (".csv", ".parquet", ".npz", ".npy")}
    assert known == {".csv": None, ".parquet": N, ".npz": N, ".npy": N}


def test_small_row_groups_are_joined(tmp_path):
    pq.write_table(pa.table(DATA), tmp_path / "p.parquet", row_group_size=3)
    source = open_predictions(tmp_path / "p.parquet", chunk_rows=512)
    assert len(list(source)) <= 4
    assert_is_data(source)


def test_small_blocks_of_csv_are_joined_and_may_end_within_a_quoted_value(tmp_path, monkeypatch):
    monkeypatch.setattr("fcal.tables.csv_format._BLOCK_BYTES", 256)
    notes = ["line\n" * (i % 9) for i in range(N)]
    rows = [f'"{note}",{m},{s},{t}' for note, m, s, t in zip(notes, *DATA.values(), strict=True)]
    (tmp_path / "p.csv").write_text("\n".join(["note,mean,std,target", *rows]))
    source = open_predictions(tmp_path / "p.csv", chunk_rows=512)
    assert len(list(source)) <= 4
    assert_is_data(source)


def test_arrays_in_either_order_have_the_same_columns(tmp_path):
    array = RNG.normal(size=(N, 2, 3))
    np.savez(tmp_path / "p.npz", c=array, f=np.asfortranarray(array))
    file = ArrayFile(tmp_path / "p.npz")
    for batch in file.all_batches(N):
        for i, j in np.ndindex(2, 3):
            for name in "cf":
                np.testing.assert_array_equal(batch.column(f"{name}_{i}_{j}"), array[:, i, j])


def test_float32_parquet_is_not_copied_or_widened(tmp_path):
    table = pa.table({name: column.astype(np.float32) for name, column in DATA.items()})
    pq.write_table(table, tmp_path / "p.parquet")
    for chunk in open_predictions(tmp_path / "p.parquet"):
        assert chunk.pred.loc.dtype == chunk.pred.scale.dtype == chunk.target.dtype == torch.float32


@pytest.mark.parametrize(
    "kind",
    [
        pa.float16(),
        pa.float32(),
        pa.int8(),
        pa.uint64(),
        pa.decimal128(10, 2),
        pa.string(),
        pa.large_string(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.float64()),
    ],
    ids=str,
)
def test_numbers_of_every_arrow_type_are_numbers(tmp_path, kind):
    text = pa.array(["1", "2", None])
    column = text.cast(kind.value_type).dictionary_encode() if pa.types.is_dictionary(kind) else None
    if column is None:
        column = text.cast(pa.float32()).cast(kind) if pa.types.is_float16(kind) else text.cast(kind)
    pq.write_table(pa.table({"mean": [0.0] * 3, "std": [1.0] * 3, "target": column}), tmp_path / "p.parquet")
    (chunk,) = open_predictions(tmp_path / "p.parquet")
    np.testing.assert_array_equal(chunk.target.numpy(), [1, 2, np.nan])


@pytest.mark.parametrize(
    "text",
    [
        "mean,std,target\n1.5,2,3\n-0.25,1e-3,nan\n",
        "\ufeffmean,std,target\n1.5,2,3\n-0.25,1e-3,nan\n",
        "mean;std;target\n1.5;2;3\n-0.25;1e-3;\n",
        "mean;std;target\n1,5;2;3\n-0,25;1e-3;NA\n",
        "mean\tstd\ttarget\n1.5\t2\t3\n-0.25\t1e-3\tNaN\n",
        "mean|std|target\n1.5|2|3\n-0.25|1e-3|NaN\n",
        "mean,std,target\r\n1.5,2,3\r\n-0.25,1e-3,nan\r\n",
        '"mean","std","target"\n"1.5","2","3"\n-0.25,1e-3,nan\n',
        " mean , std,target \n 1.5 , 2,3 \n-0.25, 1e-3 , nan\n",
        "\n\nmean,std,target\n\n1.5,2,3\n-0.25,1e-3,null\n\n",
        'note,mean,std,target\n"a, ""b""\nc",1.5,2,3\n,-0.25,1e-3,nan\n',
        '"a\nb",mean,std,target\nx,1.5,2,3\ny,-0.25,1e-3,nan\n',
        "<script>,mean,std,target\nx,1.5,2,3\ny,-0.25,1e-3,nan",
        '\ufeff"mean";std;target\r\n1,5;2;3\r\n-0,25;1e-3;\r\n',
    ],
)
def test_csv_of_every_dialect_is_read(tmp_path, text):
    (tmp_path / "p.csv").write_bytes(text.encode())
    mean, std, target = joined(open_predictions(tmp_path / "p.csv"))
    np.testing.assert_array_equal(mean.numpy(), [1.5, -0.25])
    np.testing.assert_array_equal(std.numpy(), [2, 1e-3])
    np.testing.assert_array_equal(target.numpy(), [3, np.nan])


def test_csv_of_many_blocks_may_change_from_whole_to_broken_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr("fcal.tables.csv_format._BLOCK_BYTES", 64)
    data = {**DATA, "target": np.concatenate([np.arange(500), np.arange(500) + 0.5])}
    write_csv(tmp_path / "p.csv", data)
    assert_is_data(open_predictions(tmp_path / "p.csv", chunk_rows=100), data)


def test_names_of_columns_are_options(tmp_path):
    write(tmp_path / "p.parquet", {"μ": DATA["mean"], "<script>": DATA["std"], "y": DATA["target"]})
    columns = Columns(mean="μ", std="<script>", target="y")
    source = open_predictions(tmp_path / "p.parquet", columns=columns)
    assert_is_data(source)
    assert source.describe() == ("'p.parquet': normal: mean 'μ', std '<script>', target 'y'")
    assert len(source.describe().splitlines()) == 1


def test_several_outputs_are_vectors_of_independent_laws(tmp_path):
    data = {f"{name}_{i}": column + i for i in range(3) for name, column in DATA.items()}
    write(tmp_path / "p.csv", data)
    (chunk,) = open_predictions(tmp_path / "p.csv", family="laplace")
    assert isinstance(chunk.pred, Independent)
    assert (chunk.pred.batch_shape, chunk.pred.event_shape) == ((N,), (3,))
    for i in range(3):
        np.testing.assert_array_equal(chunk.pred.mean[:, i], data[f"mean_{i}"])
        np.testing.assert_allclose(chunk.pred.stddev[:, i], data[f"std_{i}"])
        np.testing.assert_array_equal(chunk.target[:, i], data[f"target_{i}"])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_arrays_of_several_dimensions_are_columns(tmp_path, order, save):
    mean, target = RNG.normal(size=(2, N, 2))
    root = RNG.normal(size=(N, 2, 2)) + 2 * np.eye(2)
    cov = root @ root.swapaxes(1, 2)
    cov = (cov + cov.swapaxes(1, 2)) / 2
    arrays = {"mean": mean, "target": target, "cov": cov}
    save(tmp_path / "p.npz", **{name: np.asarray(a, order=order) for name, a in arrays.items()}, note="any", id=[1, 2])
    chunks = list(open_predictions(tmp_path / "p.npz", chunk_rows=300))
    assert len(chunks) == 4
    assert all(isinstance(chunk.pred, MultivariateNormal) for chunk in chunks)
    np.testing.assert_array_equal(torch.cat([c.pred.mean for c in chunks]), mean)
    np.testing.assert_allclose(torch.cat([c.pred.covariance_matrix for c in chunks]), cov, rtol=1e-12)
    np.testing.assert_array_equal(torch.cat([c.target for c in chunks]), target)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f8", ">f8", "f4", "f2", "i2", "u8", "longdouble"])
def test_npy_of_every_real_dtype_and_order_is_read(tmp_path, dtype, order):
    rows = np.array([[1, 2, 3], [4, 5, 6]], dtype=dtype, order=order)
    np.save(tmp_path / "p.npy", rows)
    mean, std, target = joined(open_predictions(tmp_path / "p.npy"))
    np.testing.assert_array_equal(torch.stack([mean, std, target], 1), [[1, 2, 3], [4, 5, 6]])


def test_column_vectors_of_an_npz_file_are_columns(tmp_path):
    np.savez(tmp_path / "p.npz", **{name: column[:, None] for name, column in DATA.items()})
    assert_is_data(open_predictions(tmp_path / "p.npz"))


TRIANGLES = {
    "lower": ["cov_0_0", "cov_1_0", "cov_1_1"],
    "upper": ["cov_0_0", "cov_0_1", "cov_1_1"],
    "full": ["cov_0_0", "cov_0_1", "cov_1_0", "cov_1_1"],
    "short": ["cov_00", "cov_10", "cov_11"],
}


@pytest.mark.parametrize("names", TRIANGLES.values(), ids=TRIANGLES)
def test_covariances_are_read_from_either_triangle(tmp_path, names):
    values = {"0": {"0": 4.0, "1": 1.0}, "1": {"0": 1.0, "1": 2.0}}
    data = {"mean_0": [1.0], "mean_1": [2.0], "target_0": [3.0], "target_1": [4.0]}
    data.update({name: [values[name.replace("_", "")[-2]][name[-1]]] for name in names})
    write(tmp_path / "p.parquet", data)
    (chunk,) = open_predictions(tmp_path / "p.parquet")
    np.testing.assert_allclose(chunk.pred.covariance_matrix, [[[4, 1], [1, 2]]])
    np.testing.assert_array_equal(chunk.target, [[3, 4]])


def test_quantile_columns_are_read_as_per_cent(tmp_path):
    data = {"q97.5": [9.0, 5.0], "q05": [1.0, 1.5], "q50": [2.0, 3.0], "target": [0.0, np.nan], "q2.5": [0.5, 1.0]}
    write(tmp_path / "p.parquet", data)
    source = open_predictions(tmp_path / "p.parquet")
    (chunk,) = source
    assert isinstance(chunk.pred, QuantileLaw)
    assert "quantiles at 2.5 %, 5 %, 50 %, 97.5 %" in source.describe()
    found = torch.stack([chunk.pred.icdf(torch.full((2,), p)) for p in (0.025, 0.05, 0.5, 0.975)], 1)
    np.testing.assert_allclose(found, [[0.5, 1, 2, 9], [1, 1.5, 3, 5]], rtol=1e-5)


def test_a_standard_deviation_goes_before_quantiles_unless_they_are_asked_for(tmp_path):
    data = {**DATA, "q05_new": DATA["mean"] - 1, "q95_new": DATA["mean"] + 1, "q05": DATA["mean"], "q95": DATA["mean"]}
    write(tmp_path / "p.parquet", data)
    (chunk,) = open_predictions(tmp_path / "p.parquet")
    assert isinstance(chunk.pred, Normal)
    (chunk,) = open_predictions(tmp_path / "p.parquet", columns=Columns(quantiles="q*_new"))
    np.testing.assert_allclose(chunk.pred.icdf(torch.full((N,), 0.95, dtype=torch.float64)), data["q95_new"])


def test_folder_and_pattern_read_all_their_files_in_order(tmp_path):
    halves = [{name: column[part] for name, column in DATA.items()} for part in (slice(0, 400), slice(400, None))]
    write(tmp_path / "a.parquet", halves[0])
    write(tmp_path / "b.csv", halves[1])
    for name in ("README.md", ".hidden.csv", "_temporary.parquet", "a.parquet.origin.json"):
        (tmp_path / name).write_text("none of this is a prediction")
    (tmp_path / "c.csv").mkdir()
    for path in (tmp_path, tmp_path / "*", f"{tmp_path}/[ab].*", tmp_path.parent / "**" / tmp_path.name / "?.*"):
        source = open_predictions(path)
        assert [file.name for file in source.files] == ["a.parquet", "b.csv"]
        assert_is_data(source)


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path):
    write(tmp_path / "p[1].csv")
    assert_is_data(open_predictions(tmp_path / "p[1].csv"))


def test_groups_keep_their_codes_over_chunks_and_files(tmp_path):
    labels = np.array(["b", "a", "<script>", ""])[RNG.integers(0, 4, N)]
    write(tmp_path / "1.parquet", {**DATA, "g": labels})
    write(tmp_path / "2.parquet", {**DATA, "g": pa.array(labels[::-1]).dictionary_encode()})
    chunks = list(open_predictions(tmp_path, columns=Columns(group="g"), chunk_rows=64))
    names = chunks[-1].group.names
    assert set(names) == set(labels.tolist())
    found = [names[code] for chunk in chunks for code in chunk.group.codes.tolist()]
    assert found == [*labels.tolist(), *labels[::-1].tolist()]
    assert all(chunk.group.names == names[: len(chunk.group.names)] for chunk in chunks)
    assert list(dict.fromkeys(found)) == list(names)


@pytest.mark.parametrize("values", [[1, 2, 1], [True, False, True], [1.5, 2.5, 1.5], ["x", None, "x"]])
def test_groups_of_every_type_are_named_by_their_text(tmp_path, values):
    write(tmp_path / "p.parquet", {"mean": [0.0] * 3, "std": [1.0] * 3, "target": [0.0] * 3, "g": values})
    (chunk,) = open_predictions(tmp_path / "p.parquet", columns=Columns(group="g"))
    second = "(none)" if values[1] is None else str(values[1])
    assert chunk.group.names == (str(values[0]), second)
    assert chunk.group.codes.tolist() == [0, 1, 0]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_labels_of_every_text_type_are_read(tmp_path, kind):
    columns = {"mean": [0.0] * 3, "std": [1.0] * 3, "target": [0.0] * 3, "g": pa.array(["x", "y", "x"], kind)}
    write(tmp_path / "p.parquet", columns)
    (chunk,) = open_predictions(tmp_path / "p.parquet", columns=Columns(group="g", cluster="g"))
    assert chunk.group.names == ("x", "y")
    assert chunk.cluster.tolist() == [0, 1, 0]


def test_names_of_a_dictionary_that_no_row_uses_are_not_groups(tmp_path):
    labels = pa.DictionaryArray.from_arrays(pa.array([2, 0, 2], pa.int32()), ["a", "unused", "c"])
    write(tmp_path / "p.parquet", {"mean": [0.0] * 3, "std": [1.0] * 3, "target": [0.0] * 3, "g": labels})
    (chunk,) = open_predictions(tmp_path / "p.parquet", columns=Columns(group="g"))
    assert chunk.group.names == ("c", "a")


def test_whole_clusters_stay_and_text_ones_are_numbered(tmp_path):
    ids = RNG.integers(-(10**12), 10**12, N)
    write(tmp_path / "p.parquet", {**DATA, "number": ids, "text": ids.astype(str)})
    for name in ("number", "text"):
        chunks = list(open_predictions(tmp_path / "p.parquet", columns=Columns(cluster=name), chunk_rows=100))
        found = torch.cat([chunk.cluster for chunk in chunks])
        assert found.dtype == torch.int64
        _, expected = np.unique(ids, return_inverse=True)
        _, actual = np.unique(found.numpy(), return_inverse=True)
        pairs = set(zip(expected.tolist(), actual.tolist(), strict=True))
        assert len(pairs) == len(set(expected.tolist())) == len(set(actual.tolist()))
        if name == "number":
            np.testing.assert_array_equal(found, ids)


def test_memory_is_bounded_by_a_chunk_even_in_one_row_group(tmp_path):
    rows, chunk_rows = 4_000_000, 1 << 16
    column = pa.array(np.random.default_rng(0).uniform(1, 2, rows).astype(np.float32))  # hardly compressible
    table = pa.table(dict.fromkeys(DATA, column))
    pq.write_table(table, tmp_path / "p.parquet", row_group_size=rows)
    size, before = table.nbytes, pa.total_allocated_bytes()
    used = max(
        pa.total_allocated_bytes() - before for _ in open_predictions(tmp_path / "p.parquet", chunk_rows=chunk_rows)
    )
    assert size == 48_000_000
    assert used < 12_000_000


def test_predictions_that_another_process_gets_read_the_same_rows(tmp_path):
    path = tmp_path / "predictions.csv"
    path.write_text("m,s,t\n1,2,3\n4,5,6\n", encoding="utf-8")
    columns = Columns(mean="m", std="s", target="t")
    copy = pickle.loads(pickle.dumps(open_predictions(path, columns=columns, family="laplace")))
    (chunk,) = copy
    assert (type(chunk.pred).__name__, chunk.target.tolist()) == ("Laplace", [3.0, 6.0])


def test_sample_of_a_csv_file_may_end_within_a_character(tmp_path):
    """Lines end with a carriage return alone; the first 262,144 bytes cut a character of two bytes."""
    header, row = "mean,std,target,name\r", "1,2,3,é\r"
    text = header + row * 40_000
    start = 262_144 - len(header.encode())
    while text.encode()[262_143:262_145] != "é".encode():
        header = header.replace("name", "name" + "x")
        text = header + row * 40_000
        assert len(header) < start
    path = tmp_path / "cr.csv"
    path.write_bytes(text.encode())
    assert sum(len(chunk.target) for chunk in open_predictions(path)) == 40_000
