"""Columns of samples: recognised, in the order of their numbers, and what is refused with its remedy."""

from pathlib import Path

import numpy as np
import pytest
import torch

import fcal
from fcal.tables import Columns, OtherColumnsError, TableError, open_predictions, whole

DRAW = np.random.default_rng(0)
SAMPLES, TARGET = DRAW.normal(size=(50, 12)), DRAW.normal(size=50)


def csv(path: Path, names: list[str], samples: np.ndarray = SAMPLES, target: str = "target") -> Path:
    rows = np.column_stack([samples[:, : len(names)], TARGET[: len(samples)]])
    np.savetxt(path, rows, delimiter=",", header=",".join([*names, target]), comments="", fmt="%.17g")
    return path


@pytest.mark.parametrize("pattern", ["s{}", "s_{}", "sample{}", "sample_{}", "samples_{}", "draw_{}"])
def test_usual_names_are_recognised_in_the_order_of_numbers(tmp_path: Path, pattern: str) -> None:
    order = DRAW.permutation(12)
    path = csv(tmp_path / "p.csv", [pattern.format(k) for k in order], SAMPLES[:, order], target="y")
    source = open_predictions(path)
    assert source.describe() == f"'p.csv': 12 samples: '{pattern.format(0)}' to '{pattern.format(11)}', target 'y'"
    assert source.layout.numbers[2] == pattern.format(2)
    pred, target = whole(source)
    expected = fcal.distributions.Empirical(SAMPLES)
    np.testing.assert_allclose(pred.mean.numpy(), expected.mean.numpy())
    np.testing.assert_allclose(fcal.nll(pred, target).numpy(), fcal.nll(expected, TARGET).numpy())


def test_arrays_are_named_by_their_name_or_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    np.savez(path, mc=SAMPLES, target=TARGET)
    for samples in ("mc", "mc_*"):
        assert "12 samples" in open_predictions(path, columns=Columns(samples=samples)).describe()


def test_mean_and_std_come_first(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    np.savez(path, samples=SAMPLES, mean=SAMPLES.mean(1), std=SAMPLES.std(1), target=TARGET)
    assert "normal: mean 'mean'" in open_predictions(path).describe()
    assert "12 samples" in open_predictions(path, columns=Columns(samples="samples")).describe()


def test_many_columns_make_small_chunks(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    np.savez(path, samples=np.random.default_rng(0).normal(size=(5000, 900)), target=np.zeros(5000))
    assert [len(chunk) for chunk in open_predictions(path, chunk_rows=1 << 20)] == [4655, 345]


def refused(path: Path, **columns: str) -> TableError:
    with pytest.raises(TableError) as caught:
        whole(open_predictions(path, columns=Columns(**columns)))
    assert "\n" not in str(caught.value)
    return caught.value


def test_samples_as_quantiles_and_the_reverse_name_the_option_that_reads_them(tmp_path: Path) -> None:
    samples = csv(tmp_path / "s.csv", [f"s{k}" for k in range(12)])
    quantiles = csv(tmp_path / "q.csv", ["q05", "q50", "q95"], np.sort(SAMPLES[:, :3]))
    for error, options in (
        (refused(samples, quantiles="s*"), {"quantiles": None, "samples": "s*"}),
        (refused(samples, quantiles="q*"), {"quantiles": None, "samples": "s*"}),
        (refused(samples, samples="x*"), {"samples": "s*"}),
        (refused(quantiles, samples="q*"), {"samples": None, "quantiles": "q*"}),
        (refused(quantiles, samples="s*"), {"samples": None, "quantiles": "q*"}),
    ):
        assert isinstance(error, OtherColumnsError)
        assert error.options == options


def test_quantiles_from_1_to_12_per_cent_that_cross_may_be_samples(tmp_path: Path) -> None:
    path = csv(tmp_path / "s.csv", [f"s{k}" for k in range(1, 13)])
    assert "(samples, in any order, are read by `samples`)" in str(refused(path, quantiles="s*"))


@pytest.mark.parametrize("count", [1, 2])
def test_few_samples_are_refused_with_the_remedy(tmp_path: Path, count: int) -> None:
    path = csv(tmp_path / "p.csv", [f"s{k}" for k in range(count)])
    message = str(refused(path, samples="s*"))
    assert "with at least 3 columns of samples, got 's0'" in message
    assert message.endswith("name mean and std columns, or draw more")


def test_gaps_nan_and_equal_samples_are_refused_with_their_row(tmp_path: Path) -> None:
    gap = csv(tmp_path / "gap.csv", ["s0", "s1", "s2", "s5"])
    assert "numbered one after the other, got 's5' after 's2'" in str(refused(gap, samples="s*"))
    spoilt = SAMPLES.copy()
    spoilt[7, 3] = np.nan
    path = csv(tmp_path / "nan.csv", [f"s{k}" for k in range(12)], spoilt)
    assert "column 's3' finite, got nan in data row 8 (1 of 50 rows)" in str(refused(path))
    spoilt[7] = 2.0
    path = csv(tmp_path / "equal.csv", [f"s{k}" for k in range(12)], spoilt)
    assert "'s0 to s11' that differ within a row" in str(refused(path))
    assert "data row 8 (1 of 50 rows)" in str(refused(path))


@pytest.mark.parametrize("options", [{"samples": "s**"}, {"samples": "s*", "quantiles": "q*"}])
def test_patterns_that_contradict_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Columns(**options)


@pytest.mark.parametrize("ending", [".pt", ".jsonl"])
def test_a_name_that_is_there_twice_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"p{ending}"
    if ending == ".pt":
        content = {"samples": torch.rand(5, 4), "samples_0": torch.rand(5), "target": torch.rand(5)}
        torch.save(content, path)
    else:
        path.write_text('{"samples": [1, 2, 3], "samples_0": 5, "target": 1}\n' * 5)
    assert "'samples_0' twice" in str(refused(path))


def test_tensors_of_a_negated_view_are_read(tmp_path: Path) -> None:
    mean = torch.rand(5)
    torch.save({"mean": torch._neg_view(mean), "std": torch.ones(5), "target": torch.zeros(5)}, tmp_path / "p.pt")
    torch.testing.assert_close(whole(open_predictions(tmp_path / "p.pt"))[0].mean.float(), -mean)
