"""The repaired file has what was there, and what a recalibrator makes of it."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import scipy.stats
import torch
from torch.distributions import Distribution, Independent, Laplace, MultivariateNormal, Normal

from fcal.distributions import QuantileLaw
from fcal.tables import Columns, TableError, open_predictions, read_origin, write_origin, write_repaired

RNG = np.random.default_rng(0)
N = 500
DATA = {
    "id": np.arange(N),
    "mean": RNG.normal(size=N).astype(np.float32),
    "note": np.array(["", "a,b", 'say "x"', "<b>", "two\nlines", "é", " x "])[np.arange(N) % 7],
    "std": RNG.uniform(0.5, 2, N).astype(np.float32),
    "target": RNG.normal(size=N).astype(np.float32),
}


def twice(pred):
    return Normal(pred.mean, 2 * pred.stddev)


def twice_laplace(pred):
    return Laplace(pred.mean, 2 * pred.stddev)


def write(path, data=DATA):
    if path.suffix == ".npz":
        np.savez(path, **data)
    elif path.suffix == ".csv":
        pyarrow.csv.write_csv(pa.table(data), path)
    else:
        pq.write_table(pa.table(data), path)
    return path


def load(path):
    if path.suffix == ".npz":
        with np.load(path) as archive:
            return dict(archive)
    if path.suffix == ".csv":
        options = pyarrow.csv.ParseOptions(newlines_in_values=True)
        table = pyarrow.csv.read_csv(path, parse_options=options)
    else:
        table = pq.read_table(path)
    return {name: np.array(table[name].to_pylist()) for name in table.column_names}


@pytest.mark.parametrize("source", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize("out", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize("chunk_rows", [1 << 18, 33])
def test_every_format_is_repaired_into_every_format(tmp_path, source, out, chunk_rows):
    predictions = open_predictions(write(tmp_path / f"in{source}"), chunk_rows=chunk_rows)
    seen = []
    assert write_repaired(predictions, tmp_path / f"out{out}", twice, advance=seen.append) == N == sum(seen)
    found = load(tmp_path / f"out{out}")
    assert list(found) == [*DATA, "mean_recalibrated", "std_recalibrated"]
    for name, column in DATA.items():
        np.testing.assert_array_equal(found[name].astype(column.dtype), column)
    assert found["id"].dtype == np.int64
    np.testing.assert_array_equal(found["mean_recalibrated"].astype(np.float32), DATA["mean"])
    np.testing.assert_array_equal(found["std_recalibrated"].astype(np.float32), 2 * DATA["std"])
    again = open_predictions(tmp_path / f"out{out}", columns=Columns(mean="mean_recalibrated", std="std_recalibrated"))
    np.testing.assert_array_equal(torch.cat([chunk.pred.stddev for chunk in again]).float(), 2 * DATA["std"])
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted({f"in{source}", f"out{out}"})


def test_csv_keeps_its_letters_and_its_dialect(tmp_path):
    (tmp_path / "in.csv").write_bytes(b'id;mean;std;target;note\r\n007;1,50;2;;"a;b"\r\n1e3;-0,5;1;3;NA\r\n')
    write_repaired(open_predictions(tmp_path / "in.csv"), tmp_path / "out.csv", twice)
    assert (tmp_path / "out.csv").read_text() == (
        'id;mean;std;target;note;mean_recalibrated;std_recalibrated\n007;1,50;2;;"a;b";1,5;4\n1e3;-0,5;1;3;NA;-0,5;2\n'
    )
    again = open_predictions(tmp_path / "out.csv", columns=Columns(mean="mean_recalibrated", std="std_recalibrated"))
    assert [chunk.pred.stddev.tolist() for chunk in again] == [[4.0, 2.0]]
    write_repaired(open_predictions(tmp_path / "in.csv"), tmp_path / "out.tsv", twice)
    assert (tmp_path / "out.tsv").read_text().splitlines()[1] == "007\t1,50\t2\t\ta;b\t1,5\t4"


def test_text_of_csv_becomes_numbers_only_where_all_of_it_is(tmp_path):
    (tmp_path / "in.csv").write_text("a,b,c,d,mean,std,target\n1,1,x,007,1,1,\n,2.5,2,8,1,1,1\n")
    write_repaired(open_predictions(tmp_path / "in.csv", chunk_rows=1), tmp_path / "out.parquet", twice)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.schema.types[:7] == [
        pa.int64(),
        pa.float64(),
        pa.string(),
        pa.string(),
        pa.int64(),
        pa.int64(),
        pa.int64(),
    ]
    assert table["a"].to_pylist() == [1, None]
    assert table["d"].to_pylist() == ["007", "8"]


def test_parquet_keeps_every_type(tmp_path):
    columns = {
        "mean": pa.array([1.0, 2.0], pa.float32()),
        "std": pa.array([1.0, 2.0], pa.float16()),
        "target": pa.array([decimal.Decimal("1.50"), None]),
        "when": pa.array([datetime.datetime(2020, 1, 1)] * 2, pa.timestamp("us")),
        "category": pa.array(["x", "y"]).dictionary_encode(),
        "list": pa.array([[1, 2], None]),
        "flag": pa.array([True, None]),
    }
    table = pa.table(columns).replace_schema_metadata({"made": "by hand"})
    pq.write_table(table, tmp_path / "in.parquet")
    stored = pq.read_table(tmp_path / "in.parquet")
    write_repaired(open_predictions(tmp_path / "in.parquet", chunk_rows=1), tmp_path / "out.parquet", twice)
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.select(table.column_names).to_pydict() == stored.to_pydict()
    assert found.schema.types[:7] == stored.schema.types
    assert found.schema.metadata[b"made"] == b"by hand"
    for suffix in (".csv", ".npz"):
        with pytest.raises(
            TableError, match=rf"out{suffix}` of a format that holds column '(list|category)', got list"
        ):
            write_repaired(open_predictions(tmp_path / "in.parquet"), tmp_path / f"out{suffix}", twice)


def test_npz_takes_the_dtype_that_holds_all_chunks(tmp_path):
    columns = {
        "mean": [1.0] * 4,
        "std": [1.0] * 4,
        "target": [1, 2, 3, None],
        "name": ["a", "bb", None, "dddd"],
        "when": pa.array([datetime.datetime(2020, 1, 1)] * 4, pa.timestamp("us")),
    }
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    write_repaired(open_predictions(tmp_path / "in.parquet", chunk_rows=1), tmp_path / "out.npz", twice)
    found = load(tmp_path / "out.npz")
    np.testing.assert_array_equal(found["target"], [1, 2, 3, np.nan])
    assert found["name"].tolist() == ["a", "bb", "", "dddd"]
    assert found["when"].dtype == np.dtype("datetime64[us]")


def test_a_law_that_is_not_normal_has_quantiles_too(tmp_path):
    write(tmp_path / "in.parquet")
    write_repaired(open_predictions(tmp_path / "in.parquet"), tmp_path / "out.parquet", twice_laplace)
    found = load(tmp_path / "out.parquet")
    law = scipy.stats.laplace(DATA["mean"].astype(float), 2 * DATA["std"].astype(float))
    np.testing.assert_allclose(found["std_recalibrated"], law.std(), rtol=1e-6)
    for level in ("2.5", "05", "25", "50", "75", "95", "97.5"):
        np.testing.assert_allclose(found[f"q{level}_recalibrated"], law.ppf(float(level) / 100), rtol=2e-6, atol=1e-6)
    (chunk,) = open_predictions(tmp_path / "out.parquet", columns=Columns(quantiles="q*_recalibrated"))
    assert isinstance(chunk.pred, QuantileLaw)
    median = chunk.pred.icdf(torch.full((N,), 0.5))
    np.testing.assert_allclose(median, DATA["mean"], rtol=1e-5, atol=1e-6)


class Ramp(Distribution):
    """A law on [0, 1] with density 2y, which the library does not know."""

    arg_constraints = {}

    def __init__(self, rows):
        super().__init__(torch.Size([rows]), validate_args=False)

    @property
    def mean(self):
        return torch.full(self.batch_shape, 2 / 3)

    @property
    def variance(self):
        return torch.full(self.batch_shape, 1 / 18)

    def icdf(self, value):
        return value.sqrt()


def test_quantiles_of_an_unknown_law_are_its_own(tmp_path):
    write(tmp_path / "in.parquet")
    write_repaired(open_predictions(tmp_path / "in.parquet"), tmp_path / "out.parquet", lambda _: Ramp(N))
    found = load(tmp_path / "out.parquet")
    np.testing.assert_allclose(found["std_recalibrated"], 1 / np.sqrt(18), rtol=1e-6)
    np.testing.assert_allclose(found["q25_recalibrated"], 0.5, rtol=1e-6)


def test_several_outputs_are_repaired_one_by_one(tmp_path):
    data = {f"{name}_{i}": DATA[name] + i for i in range(2) for name in ("mean", "std", "target")}
    write(tmp_path / "in.csv", data)

    def transform(pred):
        return Independent(Laplace(pred.mean, pred.stddev), 1)

    write_repaired(open_predictions(tmp_path / "in.csv"), tmp_path / "out.csv", transform)
    found = load(tmp_path / "out.csv")
    new = [name for name in found if name not in data]
    assert new[:4] == ["mean_recalibrated_0", "mean_recalibrated_1", "std_recalibrated_0", "std_recalibrated_1"]
    assert new[-1] == "q99.9_recalibrated_1"
    law = scipy.stats.laplace(data["mean_1"].astype(float), data["std_1"].astype(float))
    np.testing.assert_allclose(found["std_recalibrated_1"], law.std(), rtol=1e-6)
    np.testing.assert_allclose(found["q97.5_recalibrated_1"], law.ppf(0.975), rtol=1e-5, atol=1e-6)
    columns = Columns(mean="mean_recalibrated", std="std_recalibrated")
    (chunk,) = open_predictions(tmp_path / "out.csv", columns=columns)
    np.testing.assert_allclose(chunk.pred.stddev[:, 1], law.std(), rtol=1e-6)


def test_covariances_are_repaired_and_found_again_by_the_name_of_the_mean(tmp_path):
    mean, target = RNG.normal(size=(2, N, 2))
    root = RNG.normal(size=(N, 2, 2)) + 2 * np.eye(2)
    cov = root @ root.swapaxes(1, 2)
    np.savez(tmp_path / "in.npz", mean=mean, target=target, cov=cov)

    def transform(pred):
        return MultivariateNormal(pred.mean + 1, 4 * pred.covariance_matrix)

    for out in ("out.npz", "out.csv"):
        write_repaired(open_predictions(tmp_path / "in.npz", chunk_rows=100), tmp_path / out, transform)
        again = open_predictions(tmp_path / out, columns=Columns(mean="mean_recalibrated"))
        found = torch.cat([chunk.pred.covariance_matrix for chunk in again])
        np.testing.assert_allclose(found, 4 * cov, rtol=1e-9)
        before = open_predictions(tmp_path / out)
        np.testing.assert_array_equal(torch.cat([chunk.pred.mean for chunk in before]), mean)
    arrays = load(tmp_path / "out.npz")
    assert {name: array.shape for name, array in arrays.items()} == {
        "mean": (N, 2),
        "target": (N, 2),
        "cov": (N, 2, 2),
        "mean_recalibrated": (N, 2),
        "cov_recalibrated": (N, 2, 2),
    }
    np.testing.assert_array_equal(arrays["cov"], cov)


def test_quantiles_are_repaired_into_quantiles(tmp_path):
    write(tmp_path / "in.csv", {"q05": [0.0, 1.0], "q50": [1.0, 3.0], "q95": [3.0, 4.0], "target": [0.0, np.nan]})
    write_repaired(open_predictions(tmp_path / "in.csv"), tmp_path / "out.csv", lambda pred: pred)
    found = load(tmp_path / "out.csv")
    np.testing.assert_allclose(found["q05_recalibrated"], [0, 1], atol=1e-6)
    np.testing.assert_allclose(found["q95_recalibrated"], [3, 4], rtol=1e-6)


def test_files_of_a_folder_become_one(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.parquet")
    write(folder / "b.csv", dict(reversed(DATA.items())))
    write_repaired(open_predictions(folder), tmp_path / "out.parquet", twice)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names[:5] == list(DATA)
    assert table["id"].to_pylist() == [*range(N), *range(N)]
    assert table.schema.field("mean").type == pa.float32()


def test_csv_files_of_two_decimal_points_do_not_become_one(tmp_path):
    (tmp_path / "a.csv").write_text("mean;std;target\n1,5;1;1\n")
    (tmp_path / "b.csv").write_text("mean;std;target\n1.5;1;1\n")
    source = open_predictions(tmp_path)
    with pytest.raises(TableError, match=r"b.csv` with the decimal point ',' of a.csv, got '\.'$"):
        write_repaired(source, tmp_path / "out" / "out.csv", twice)
    write_repaired(source, tmp_path / "out.parquet", twice)
    assert pq.read_table(tmp_path / "out.parquet")["mean"].to_pylist() == [1.5, 1.5]


def test_an_input_may_be_replaced_by_its_repair_once(tmp_path):
    path = write(tmp_path / "p.parquet")
    source = open_predictions(path, chunk_rows=64)
    write_repaired(source, path, twice)
    assert load(path)["std_recalibrated"].tolist() == (2 * DATA["std"]).tolist()
    before = path.read_bytes()
    with pytest.raises(TableError, match=r"with new columns, got 'mean_recalibrated' already in p.parquet: is it"):
        write_repaired(open_predictions(path), path, twice)
    assert path.read_bytes() == before


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, suffix):
    source = write(tmp_path / "in.parquet", {**DATA, "std": np.append(DATA["std"][:-1], -1)})
    out = tmp_path / f"out{suffix}"
    out.write_text("old")
    with pytest.raises(TableError, match=r"column 'std' > 0, got -1 in data row 500 \(1 of 500 rows\)$"):
        write_repaired(open_predictions(source, chunk_rows=50), out, twice)
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.parquet", out.name]


def test_outputs_that_cannot_be_written_are_refused_before_any_work(tmp_path):
    source = open_predictions(write(tmp_path / "in.parquet"))
    with pytest.raises(
        TableError, match=r"suffixes .csv, .tsv, .*.parquet, .pq, .npz, .*got '.npy', which has no names of"
    ):
        write_repaired(source, tmp_path / "out.npy", pytest.fail)
    with pytest.raises(TableError, match=r"with one of the suffixes .*, got '.txt'$"):
        write_repaired(source, tmp_path / "out.txt", pytest.fail)
    (tmp_path / "out.csv").mkdir()
    with pytest.raises(TableError, match=r"a file to write, got a folder$"):
        write_repaired(source, tmp_path / "out.csv", pytest.fail)


def test_a_transform_that_loses_rows_is_refused(tmp_path):
    source = open_predictions(write(tmp_path / "in.parquet"))
    with pytest.raises(ValueError, match=r"^expected `transform` to keep shape \(500,\), got \(\)$"):
        write_repaired(source, tmp_path / "out.csv", lambda _: Normal(torch.tensor(0.0), torch.tensor(1.0)))


def test_origin_comes_back_while_the_file_is_the_same(tmp_path):
    out = tmp_path / "out.csv"
    out.write_text("mean,std,target\n1,1,1\n")
    assert read_origin(out) is None
    document = {"method": "isotonic", "fitted_on": "abc", "command": ["fcal", "recalibrate"]}
    assert write_origin(out, document) == tmp_path / "out.csv.origin.json"
    found = read_origin(str(out))
    assert {key: found[key] for key in document} == document
    out.write_text("mean,std,target\n2,2,2\n")
    assert read_origin(out) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"method": 1}', b"\xff\xfe", "[" * 100_000])
def test_origin_that_is_not_ours_is_refused_in_one_line(tmp_path, text):
    note = tmp_path / "out.csv.origin.json"
    note.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TableError, match=r"^expected `.*out.csv.origin.json` a JSON [^\n]*$"):
        read_origin(tmp_path / "out.csv")
