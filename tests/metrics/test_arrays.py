"""Arrays of other libraries as arguments of evaluate, and reports as people read them."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch.distributions import Normal

import fcal
from fcal._arrays import as_flags, as_labels, as_numbers

N = 400
GENERATOR = torch.Generator().manual_seed(0)
MEAN, NOISE = torch.randn(2, N, generator=GENERATOR, dtype=torch.float64)
STD = 0.5 + torch.rand(N, generator=GENERATOR, dtype=torch.float64)
TARGET = MEAN + 1.3 * STD * NOISE
GROUP = ["left" if k % 3 else "right" for k in range(N)]
LIBRARIES = {
    "numpy": lambda values: np.asarray(values),
    "pandas": lambda values: pd.Series(values, index=range(100, 100 + len(values))),
    "polars": lambda values: pl.Series(values),
    "list": lambda values: list(values),
}


def same(report, expected):
    one, two = (json.dumps(each.as_dict()) for each in (report, expected))
    return one == two


@pytest.mark.parametrize("library", LIBRARIES)
def test_arrays_of_every_library_give_the_report_of_tensors(library):
    convert = LIBRARIES[library]
    codes = torch.tensor([0 if name == "right" else 1 for name in GROUP])
    expected = fcal.evaluate(
        Normal(MEAN, STD), TARGET, group=codes, group_names=["right", "left"], cluster=torch.arange(N) // 4
    )
    report = fcal.evaluate(
        mean=convert(MEAN.tolist()),
        std=convert(STD.tolist()),
        target=convert(TARGET.tolist()),
        group=convert(GROUP),
        cluster=convert([f"image {k // 4}" for k in range(N)]),
    )
    assert list(report.groups) == ["right", "left"]
    assert same(report, expected)


def test_variances_are_squares_of_standard_deviations():
    one = fcal.evaluate(mean=MEAN, variance=STD.square(), target=TARGET)
    assert one.scale.value == pytest.approx(fcal.evaluate(mean=MEAN, std=STD, target=TARGET).scale.value)


def test_one_standard_deviation_stands_for_all():
    expected = fcal.evaluate(Normal(MEAN, torch.full_like(MEAN, 0.7)), TARGET)
    assert same(fcal.evaluate(mean=MEAN.numpy(), std=0.7, target=TARGET.numpy()), expected)


@pytest.mark.parametrize(
    "values",
    [
        pd.Series([1.0, None, 2.0]),
        pd.Series([1, None, 2], dtype="Int64"),
        pl.Series([1.0, None, 2.0]),
        pl.Series([1, None, 2]),
        [1, None, 2],
        np.array([1.0, np.nan, 2.0], dtype=np.float32),
    ],
)
def test_missing_targets_of_every_library_are_missing(values):
    numbers = as_numbers("target", values)
    assert numbers.isnan().tolist() == [False, True, False]
    assert fcal.evaluate(mean=[0.0] * 3, std=[1.0] * 3, target=values).n == 2


def test_columns_of_a_frame_are_rows_of_several_outputs():
    frame = pd.DataFrame({"a": MEAN.numpy(), "b": TARGET.numpy()})
    expected = fcal.evaluate(Normal(torch.stack([MEAN, TARGET], 1), 1.0), torch.stack([TARGET, MEAN], 1))
    assert same(fcal.evaluate(mean=frame, std=1.0, target=frame[["b", "a"]]), expected)


def test_masks_of_every_library_are_masks():
    mask = [k % 2 == 0 for k in range(N)]
    expected = fcal.evaluate(Normal(MEAN, STD), TARGET, valid_mask=torch.tensor(mask))
    for convert in LIBRARIES.values():
        assert same(fcal.evaluate(Normal(MEAN, STD), TARGET, valid_mask=convert(mask)), expected)


def test_labels_are_of_any_type():
    for values in (["a", None], pd.Series(["a", None]), pl.Series(["a", None]), np.array(["a", None], dtype=object)):
        assert as_labels("group", values)[1] == ["a", "(none)"]
    assert as_labels("group", pd.Series(["x", "y"], dtype="category"))[1] == ["x", "y"]
    assert as_labels("group", pd.Series([3, 1]))[1] == ["1", "3"]
    codes, names = as_labels("group", pd.Series([True, False]))
    assert [names[code] for code in codes] == ["True", "False"]
    assert as_labels("group", pd.to_datetime(pd.Series(["2020-01-02"])))[1][0].startswith("2020-01-02")


@pytest.mark.parametrize(
    "values", [["a", "b"], [True, False], pd.to_datetime(pd.Series(["2020-01-02"])), [[1], [1, 2]]]
)
def test_what_is_no_number_is_refused_by_name(values):
    with pytest.raises((TypeError, ValueError), match="expected `target` (of numbers|with rows of one length), got a"):
        as_numbers("target", values)


def test_what_is_no_flag_is_refused_by_name():
    with pytest.raises(TypeError, match="expected `valid_mask` of True and False, got a list of int"):
        as_flags("valid_mask", [1, 0])


def test_columns_of_frames_with_other_rows_are_refused():
    mean, target = pd.Series(MEAN.numpy()), pd.Series(TARGET.numpy())
    assert fcal.evaluate(mean=mean, std=1.0, target=target).n == N
    with pytest.raises(ValueError, match="expected `mean` and `target` with the same index, got different ones"):
        fcal.evaluate(mean=mean.sort_index(ascending=False), std=1.0, target=target)


# Reports


REPORT = fcal.evaluate(mean=MEAN, std=STD, target=TARGET, group=[f"<b>{name}</b>" for name in GROUP])


def test_printed_report_begins_with_the_verdict_and_has_every_number():
    lines = str(REPORT).splitlines()
    assert lines[0] == f"over-confident: {REPORT.reason}"
    for name, value in (("ECE(z)", REPORT.ece_z), ("ECE(q)", REPORT.ece_q), ("ENCE", REPORT.ence)):
        assert any(line.startswith(name) and f"{value:.4g}" in line for line in lines)
    assert f"NLL {REPORT.nll:.4g}, CRPS {REPORT.crps:.4g}" in str(REPORT)
    assert any(line.startswith("<b>left</b>") for line in lines)


def test_html_of_a_report_has_no_markup_of_the_data():
    html = REPORT._repr_html_()
    assert "&lt;b&gt;left" in html
    assert "<b>left" not in html


def test_frame_of_a_report_has_a_row_of_every_group():
    frame = REPORT.to_frame()
    assert list(frame.index) == ["all", *REPORT.groups]
    assert frame.loc["all", "scale"] == REPORT.scale.value
    assert frame["n"].sum() == 2 * N


def test_report_is_saved_by_the_ending_of_the_name(tmp_path):
    REPORT.save(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["verdict"] == "over-confident"
    REPORT.save(str(tmp_path / "report.html"))
    assert "over-confident" in (tmp_path / "report.html").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"one of '.html', '.json', got '.txt'"):
        REPORT.save(tmp_path / "report.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]


DRAWS = MEAN.unsqueeze(1) + STD.unsqueeze(1) * torch.randn(N, 12, generator=GENERATOR, dtype=torch.float64)
TABLES = {
    "numpy": lambda rows: rows.numpy(),
    "pandas": lambda rows: pd.DataFrame(rows.numpy()),
    "polars": lambda rows: pl.DataFrame(rows.numpy()),
    "list": lambda rows: rows.tolist(),
    "tensor": lambda rows: rows,
}


@pytest.mark.parametrize("library", TABLES)
def test_samples_of_every_library_are_their_empirical_law(library):
    expected = fcal.evaluate(fcal.distributions.Empirical(DRAWS), TARGET)
    assert same(fcal.evaluate(samples=TABLES[library](DRAWS), target=TARGET), expected)


def test_samples_of_several_outputs_are_independent_laws():
    both = fcal.evaluate(samples=torch.stack([DRAWS, 2 * DRAWS], -1), target=torch.stack([TARGET, 2 * TARGET], -1))
    assert both.n == 2 * N
    assert both.scale.value == pytest.approx(fcal.evaluate(samples=DRAWS, target=TARGET).scale.value)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("score", [fcal.nll, fcal.crps])
def test_scores_take_arrays_for_targets_masks_and_weights(library, score):
    convert, pred = LIBRARIES[library], Normal(MEAN, STD)
    mask, weight = (torch.arange(N) % 2 == 0), torch.rand(N, generator=torch.Generator().manual_seed(1)).double()
    expected = score(pred, TARGET, valid_mask=mask, weight=weight)
    found = score(
        pred,
        convert(TARGET.tolist()),
        valid_mask=convert(mask.tolist()),
        weight=convert(weight.tolist()),
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("library", LIBRARIES)
def test_residuals_repairs_and_families_take_arrays(library):
    convert, pred = LIBRARIES[library], Normal(MEAN, STD)
    target, mask = convert(TARGET.tolist()), convert([k % 5 > 0 for k in range(N)])
    z = fcal.standardize(pred, target, valid_mask=mask)
    torch.testing.assert_close(z, fcal.standardize(pred, TARGET, valid_mask=torch.arange(N) % 5 > 0), equal_nan=True)
    repair = fcal.recalibration.Temperature()
    assert repair.fit(pred, target, valid_mask=mask).fitted_on is not None
    selection = fcal.select_family(
        pred, target, valid_mask=mask, groups=convert(GROUP_OF_ROWS), families=["normal", "laplace"]
    )
    expected = fcal.select_family(
        pred, TARGET, valid_mask=torch.arange(N) % 5 > 0, groups=GROUP_OF_ROWS, families=["normal", "laplace"]
    )
    assert selection.ranking == expected.ranking


GROUP_OF_ROWS = [f"drive {k // 20}" for k in range(N)]


def test_one_number_is_a_probability_for_all():
    pred = Normal(MEAN, STD)
    found = fcal.distributions.quantile(pred, 0.95)
    torch.testing.assert_close(found, MEAN + STD * torch.special.ndtri(torch.tensor(0.95, dtype=torch.float64)))
    assert fcal.distributions.quantile(Normal(MEAN.float(), STD.float()), 0.95).dtype == torch.float32
    torch.testing.assert_close(fcal.distributions.quantile(pred, np.full(N, 0.95)), found)
    for law in (
        fcal.distributions.Empirical(DRAWS),
        fcal.distributions.Logistic(MEAN, STD),
        fcal.distributions.AsymmetricLaplace(MEAN, STD, torch.ones(N).double()),
        fcal.distributions.TruncatedNormal(MEAN, STD, MEAN - 1, MEAN + 1),
        fcal.recalibration.Temperature().fit(pred, TARGET).transform(pred),
    ):
        torch.testing.assert_close(fcal.distributions.quantile(law, 0.95).double(), _upper(law).double())


def _upper(law):
    try:
        return law.icdf(0.95)
    except (AttributeError, TypeError):  # torch's own classes take tensors
        return law.icdf(torch.tensor(0.95, dtype=torch.float64))


def test_nothing_is_no_number():
    with pytest.raises(TypeError, match="expected `target` of numbers, got None"):
        fcal.nll(Normal(MEAN, STD), None)
