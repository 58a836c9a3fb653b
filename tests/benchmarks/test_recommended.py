"""The recommended row is what fcal.crossfit does by default."""

import torch
from torch.distributions import Normal

from fcal.benchmarks.methods import METHODS, RECOMMENDED
from fcal.crossfitting import usual_repair
from fcal.recalibration import by_name


def test_recommended_row_has_the_default_repair_of_crossfit():
    default = usual_repair(Normal(torch.zeros(2), torch.ones(2)))
    assert by_name(METHODS[RECOMMENDED].recalibrator) is type(default)
