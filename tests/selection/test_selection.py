"""Selection of the family of noise: the true family where the data suffice, and no family where they do not."""

import json
import math

import pytest
import torch
from scipy import stats
from torch.distributions import Gamma, Gumbel, Laplace, Normal, StudentT

import fcal
from fcal.selection.candidates import CANDIDATES, fitted_to

ROWS = 10_000
NOISES = {
    "normal": Normal(0.0, 1.0),
    "laplace": Laplace(0.0, 1.0),
    "student-t": StudentT(3.0),
    "gamma": Gamma(5.0, 5.0**0.5),
    "gumbel": Gumbel(0.0, 1.0),
}


def drawn(name, rows=ROWS, seed=0):
    torch.manual_seed(seed)
    return NOISES[name].sample((rows,)).double()


def standard(rows):
    return Normal(torch.zeros(rows, dtype=torch.float64), torch.ones(rows, dtype=torch.float64))


@pytest.mark.parametrize("name", NOISES)
def test_family_of_the_noise_is_named(name):
    """Each true family is ahead by at least three standard errors in expectation: a false alarm in 700."""
    assert fcal.select_family(standard(ROWS), drawn(name)).family == name


@pytest.mark.parametrize("name", ["gamma", "gumbel"])
def test_mirrored_noise_is_of_the_mirrored_family(name):
    assert fcal.select_family(standard(ROWS), -drawn(name)).family == f"mirrored-{name}"


def test_families_that_few_data_cannot_tell_apart_are_not_told():
    found = fcal.select_family(standard(60), drawn("normal", 60))
    assert found.family is None
    assert found.verdict.startswith("the data cannot tell ")
    assert "normal" in found.verdict


@pytest.mark.parametrize(
    ("name", "log_density"),
    [
        ("normal", lambda e: stats.norm(*stats.norm.fit(e)).logpdf(e)),
        ("laplace", lambda e: stats.laplace(*stats.laplace.fit(e)).logpdf(e)),
        ("student-t", lambda e: stats.t(*stats.t.fit(e)).logpdf(e)),
        ("gumbel", lambda e: stats.gumbel_r(*stats.gumbel_r.fit(e)).logpdf(e)),
        ("gamma", lambda e: stats.gamma(*stats.gamma.fit(e)).logpdf(e)),
    ],
)
def test_fitted_law_is_as_likely_as_the_one_of_scipy(name, log_density):
    """Up to outliers, a thousandth of the errors, which cost 0.001 each."""
    errors = drawn(name, 1000)
    ours = float(fitted_to(errors, CANDIDATES[name]).log_likelihood(errors).mean())
    assert ours == pytest.approx(log_density(errors.numpy()).mean(), abs=0.003)


def test_scores_do_not_depend_on_units_of_the_target():
    noise = drawn("laplace", 500)
    first = fcal.select_family(standard(500), noise)
    other = fcal.select_family(Normal(torch.full((500,), 7.0).double(), 100.0), 7 + 100 * noise)
    for one, two in zip(first.ranking, other.ranking, strict=True):
        assert one.family == two.family
        assert one.log_likelihood == pytest.approx(two.log_likelihood, abs=1e-6)


def test_standard_error_counts_a_group_as_one():
    noise = drawn("laplace", 400)
    repeated, groups = noise.repeat_interleave(9), torch.arange(400).repeat_interleave(9)
    families = ["normal", "laplace"]
    once = fcal.select_family(standard(400), noise, families=families).ranking[1]
    many = fcal.select_family(standard(3600), repeated, groups=groups, families=families).ranking[1]
    fooled = fcal.select_family(standard(3600), repeated, families=families).ranking[1]
    assert many.standard_error == pytest.approx(once.standard_error, rel=0.1)
    assert fooled.standard_error == pytest.approx(once.standard_error / 3, rel=0.1)


def test_missing_targets_do_not_count():
    noise = drawn("normal", 300)
    missing = torch.cat([noise, torch.full((50,), math.nan)])
    masked = torch.cat([noise, torch.full((50,), 1e9)])
    mask = torch.arange(350) < 300
    a = fcal.select_family(standard(350), missing, families=["normal", "laplace"])
    b = fcal.select_family(standard(350), masked, valid_mask=mask, families=["normal", "laplace"])
    assert a.ranking == b.ranking


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"families": ["gauss"]}, "expected `families` one of 'normal', .* got 'gauss'"),
        ({"target": torch.zeros(20)}, "expected `target` of shape"),
        ({"folds": 1}, "expected `folds`"),
        ({"valid_mask": torch.zeros(100, dtype=torch.bool)}, "expected .*50"),
    ],
)
def test_select_family_refuses(change, message):
    arguments = {"pred": standard(100), "target": drawn("normal", 100), **change}
    with pytest.raises(ValueError, match=message):
        fcal.select_family(arguments.pop("pred"), arguments.pop("target"), **arguments)


def test_a_selection_prints_its_verdict_and_ranking_and_is_saved(tmp_path):
    noise = torch.distributions.Laplace(0.0, 1.0).icdf(torch.linspace(0.0005, 0.9995, 1000, dtype=torch.float64))
    noise = noise[torch.randperm(1000, generator=torch.Generator().manual_seed(0))]
    pred = torch.distributions.Normal(torch.zeros(1000), 1.0)
    selection = fcal.select_family(pred, noise, families=["normal", "laplace", "student-t"])
    lines = str(selection).splitlines()
    assert lines[0] == f"family of the noise: {selection.verdict}"
    assert [line.split()[0] for line in lines[3:6]] == [ranked.family for ranked in selection.ranking]
    frame = selection.to_frame()
    assert list(frame.index) == [ranked.family for ranked in selection.ranking]
    assert frame.loc["normal", "behind"] == next(r.behind for r in selection.ranking if r.family == "normal")
    assert selection._repr_html_().count("<tr>") == 4
    selection.save(tmp_path / "ranking.json")
    assert json.loads((tmp_path / "ranking.json").read_text()) == selection.as_dict()
    selection.save(tmp_path / "ranking.html")
    page = (tmp_path / "ranking.html").read_text()
    assert "Family of the noise" in page
    assert "laplace" in page
    with pytest.raises(ValueError, match="ending of the file's name"):
        selection.save(tmp_path / "ranking.txt")
