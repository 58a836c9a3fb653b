"""Every family has the moments that it is made from."""

import pytest
import scipy.stats
import torch

import fcal
from fcal.tables import families

MEAN = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
STD = torch.tensor([0.1, 0.2, 0.05], dtype=torch.float64)
NAMES = [name if name != "student-t" else "student-t:5" for name in families.names()]

# The same laws in SciPy's words, from the parameters that ours ended up with.
IN_SCIPY = {
    "normal": lambda p: scipy.stats.norm(p.loc, p.scale),
    "laplace": lambda p: scipy.stats.laplace(p.loc, p.scale),
    "logistic": lambda p: scipy.stats.logistic(p.loc, p.scale),
    "gumbel": lambda p: scipy.stats.gumbel_r(p.loc, p.scale),
    "student-t:5": lambda p: scipy.stats.t(p.df, p.loc, p.scale),
    "uniform": lambda p: scipy.stats.uniform(p.low, p.high - p.low),
    "gamma": lambda p: scipy.stats.gamma(p.concentration, scale=1 / p.rate),
    "log-normal": lambda p: scipy.stats.lognorm(p.scale, scale=p.loc.exp()),
    "inverse-gamma": lambda p: scipy.stats.invgamma(p.concentration, scale=p.rate),
    "beta": lambda p: scipy.stats.beta(p.concentration1, p.concentration0),
}


@pytest.mark.parametrize("name", NAMES)
def test_family_has_the_given_moments_in_scipy_and_in_torch(name):
    law = families.family(name).law(MEAN, STD)
    oracle = IN_SCIPY[name](law)
    torch.testing.assert_close(torch.as_tensor(oracle.mean()), MEAN)
    torch.testing.assert_close(torch.as_tensor(oracle.std()), STD)
    torch.testing.assert_close(law.mean, MEAN)
    torch.testing.assert_close(law.stddev, STD)


@pytest.mark.parametrize("name", NAMES)
def test_family_is_one_that_scores_and_residuals_know(name):
    law = families.family(name).law(MEAN, STD)
    below = torch.as_tensor(IN_SCIPY[name](law).cdf(MEAN + STD / 2))
    torch.testing.assert_close(fcal.standardize(law, MEAN + STD / 2), torch.special.ndtri(below))


@pytest.mark.parametrize("name", NAMES)
def test_family_keeps_shape_and_dtype(name):
    law = families.family(name).law(MEAN.float().expand(4, 3), STD.float().expand(4, 3))
    assert law.mean.shape == (4, 3)
    assert law.mean.dtype == torch.float32


@pytest.mark.parametrize("name", ["student-t", "student-t:2", "student-t:x", "student-t:", "student-t:nan"])
def test_student_t_without_a_usable_df_is_refused(name):
    with pytest.raises(
        ValueError, match=f"^expected `family` student-t with degrees of freedom above 2.*got '{name}'$"
    ):
        families.family(name)


def test_unknown_family_or_parameter_is_refused_by_name():
    with pytest.raises(ValueError, match=r"^expected `family` one of 'normal', .*got 'norml' \(did you mean 'normal'"):
        families.family("norml")
    with pytest.raises(ValueError, match=r"^expected `family` 'laplace' without a parameter, got 'laplace:3'$"):
        families.family("laplace:3")


def test_impossible_moments_are_named_by_row(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("mean,std,target\n1,1,1\n-2,1,1\n0,1,1\n")
    for name in ("gamma", "log-normal", "inverse-gamma"):
        with pytest.raises(
            fcal.tables.TableError, match=rf"> 0 for the family {name}, got .*-2, 1.* row 2 \(2 of 3 rows\)$"
        ):
            list(fcal.tables.open_predictions(path, family=name))
    with pytest.raises(fcal.tables.TableError, match=r"within \(0, 1\).*data row 1 \(3 of 3 rows\)$"):
        list(fcal.tables.open_predictions(path, family="beta"))
