"""Columns under the names that people give them: which are recognised, what they mean, and what is refused."""

import numpy as np
import pytest
import torch

import fcal
from fcal.cli import main
from fcal.tables import Columns, OtherColumnsError, TableError, open_predictions, whole

ROWS = "1.0,0.5,1.2\n2.0,0.25,1.9\n-1.0,2.0,0.5\n"
MEAN, STD, TARGET = np.array([[float(v) for v in line.split(",")] for line in ROWS.split()]).T


def csv(folder, header, rows=ROWS, name="p.csv"):
    path = folder / name
    path.write_text(f"{header}\n{rows}")
    return path


def read(path, **columns):
    pred, target = whole(open_predictions(path, columns=Columns(**columns)))
    return pred.mean.double().numpy(), pred.stddev.double().numpy(), target.double().numpy()


@pytest.mark.parametrize(
    "header",
    [
        "mu,sigma,y",
        "prediction,uncertainty,label",
        "y_pred,y_std,y_true",
        "loc,scale,target",
        "pred_mean,pred_std,actual",
        "Mean,Std,Target",
        "Y Pred,Y-Std,Ground Truth",
        "mean,sd,obs",
    ],
)
def test_usual_names_are_read_as_what_they_mean(tmp_path, header):
    np.testing.assert_allclose(read(csv(tmp_path, header)), (MEAN, STD, TARGET), rtol=1e-6)


def test_order_of_columns_and_others_beside_them_do_not_matter(tmp_path):
    path = csv(tmp_path, "id,y_true,sigma,camera,mu", "7,1.2,0.5,a,1.0\n8,1.9,0.25,b,2.0\n9,0.5,2.0,c,-1.0\n")
    np.testing.assert_allclose(read(path), (MEAN, STD, TARGET), rtol=1e-6)


def test_default_names_win_over_usual_ones(tmp_path):
    path = csv(tmp_path, "mean,std,target,y,sigma", "1,2,3,40,50\n1,2,3,40,50\n")
    np.testing.assert_allclose(read(path), ([1, 1], [2, 2], [3, 3]))


@pytest.mark.parametrize(
    ("header", "columns"),
    [("mu,var,y", {}), ("mean,pred_variance,target", {}), ("mean,spread,target", {"variance": "spread"})],
)
def test_variances_become_standard_deviations(tmp_path, header, columns):
    np.testing.assert_allclose(read(csv(tmp_path, header), **columns), (MEAN, np.sqrt(STD), TARGET), rtol=1e-6)


@pytest.mark.parametrize(("header", "columns"), [("mu,logvar,y", {}), ("mean,s,target", {"log_variance": "s"})])
def test_logarithms_of_variances_become_standard_deviations(tmp_path, header, columns):
    np.testing.assert_allclose(read(csv(tmp_path, header), **columns), (MEAN, np.exp(STD / 2), TARGET), rtol=1e-6)


def test_intervals_are_normal_distributions_with_these_bounds(tmp_path):
    path = csv(tmp_path, "low,high,target", "-1.2815515655446004,1.2815515655446004,0.5\n2,4,3\n")
    pred, target = whole(open_predictions(path, columns=Columns(lower="low", upper="high", level=0.8)))
    np.testing.assert_allclose(pred.cdf(torch.tensor([-1.2815515655, 2.0])), 0.1, atol=1e-6)
    np.testing.assert_allclose(pred.cdf(torch.tensor([1.2815515655, 4.0])), 0.9, atol=1e-6)
    np.testing.assert_allclose(fcal.standardize(pred, target), [0.5, 0.0], atol=1e-5)


def test_outputs_may_have_any_ending(tmp_path):
    rows = "1,10,0.5,0.25,1.5,11\n2,20,1,2,2.5,22\n"
    path = csv(tmp_path, "mean_x,mean_y,std_x,std_y,target_x,target_y", rows)
    source = open_predictions(path)
    pred, target = whole(source)
    assert source.layout.outputs == ("mean_x", "mean_y")
    assert pred.mean.tolist() == [[1, 10], [2, 20]]
    assert pred.stddev.tolist() == [[0.5, 0.25], [1, 2]]
    assert target.tolist() == [[1.5, 11], [2.5, 22]]


def test_numbered_outputs_have_usual_names_too(tmp_path):
    path = csv(tmp_path, "mu_0,mu_1,sigma_0,sigma_1,y_0,y_1", "1,10,0.5,0.25,1.5,11\n2,20,1,2,2.5,22\n")
    pred, target = whole(open_predictions(path))
    assert pred.mean.tolist() == [[1, 10], [2, 20]]
    assert target.tolist() == [[1.5, 11], [2.5, 22]]


def test_two_columns_that_may_be_meant_are_refused_with_the_command_that_reads_one(tmp_path, capsys):
    path = csv(tmp_path, "mu,prediction,sigma,y", "1,2,3,4\n1,2,3,4\n")
    with pytest.raises(OtherColumnsError, match="with one column of the mean, got 'mu' and 'prediction'"):
        open_predictions(path)
    assert main(["evaluate", str(path), "--bins", "5"]) == 2
    error = capsys.readouterr().err
    command = f"fcal evaluate {path} --bins 5 --mean mu --std sigma --target y"
    assert error.endswith(f"; type: {command}\n")
    assert main(["evaluate", *command.split()[2:]]) == 0  # the command that was printed works


@pytest.mark.parametrize(("name", "option"), [("variance", "--variance"), ("log_var", "--log-variance")])
def test_a_variance_read_as_a_standard_deviation_is_refused_with_the_command_that_reads_it(
    tmp_path, capsys, name, option
):
    path = csv(tmp_path, f"mean,{name},target")
    assert main(["evaluate", str(path), "--std", name]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.endswith(f"; type: fcal evaluate {path} {option} {name}\n")
    assert main(["evaluate", str(path), option, name]) == 0


def test_what_was_recognised_is_said(tmp_path, capsys):
    assert main(["evaluate", str(csv(tmp_path, "mu,var,y"))]) == 0
    assert "mean 'mu', variance 'var', target 'y'" in " ".join(capsys.readouterr().out.split())


def test_recalibrated_columns_are_named_after_those_that_were_read(tmp_path, capsys):
    path = csv(tmp_path, "mu,var,y", "".join(f"{k / 10},{1 + k % 3},{(k * 7) % 11 / 5}\n" for k in range(60)))
    out = tmp_path / "out.csv"
    words = ["recalibrate", "--method", "temperature", "--fit", str(path), "--apply", str(path), "--out", str(out)]
    assert main(words) == 0
    assert out.read_text().splitlines()[0] == "mu,var,y,mu_recalibrated,std_recalibrated"
    hint = capsys.readouterr().err.split("look closer: fcal ")[1].splitlines()[0].split()
    assert main(hint) == 0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"lower": "a"}, "expected `lower` together with `upper`, got no upper"),
        ({"variance": "a", "log_variance": "b"}, "got variance and log_variance"),
        ({"lower": "a", "upper": "b", "level": -0.5}, "expected `level` within"),
        ({"lower": "a", "upper": "b", "level": 90}, r"got 90: did you mean 0.9\?"),
    ],
)
def test_contradicting_columns_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        Columns(**columns)


@pytest.mark.parametrize(
    ("header", "row"), [("mu,var,y", "1,-1,1"), ("mu,logvar,y", "1,800,1"), ("mu,sigma,y", "1,0,1")]
)
def test_impossible_spreads_are_refused_with_their_row(tmp_path, header, row):
    path = csv(tmp_path, header, f"1,1,1\n{row}\n")
    with pytest.raises(TableError, match=r"in data row 2"):
        whole(open_predictions(path))


def test_bounds_that_are_exchanged_are_refused_in_their_own_words(tmp_path):
    path = csv(tmp_path, "low,high,target", "1,2,1\n3,2,1\n")
    with pytest.raises(TableError, match="with the lower bound below the upper one, got .* in data row 2"):
        whole(open_predictions(path, columns=Columns(lower="low", upper="high")))


def test_missing_targets_are_counted_aloud(tmp_path, capsys):
    path = csv(tmp_path, "mu,sigma,y", ROWS + "1.0,1.0,\n2.0,1.0,\n")
    assert main(["evaluate", str(path)]) == 0
    assert "2 of 5 targets are missing and do not count" in capsys.readouterr().out
