"""Run in an environment that holds nothing but the installed wheel."""

import torch
from torch.distributions import Laplace, Normal

import fcal.cli

torch.manual_seed(0)
scale = torch.ones(1000, requires_grad=True)
for family in (Normal, Laplace):
    loss = fcal.losses.CombinedLoss(lam=0.5)(family(torch.zeros(1000), scale), torch.randn(1000))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(scale.grad).all()
report = fcal.evaluate(Normal(torch.zeros(1000), 0.5), torch.randn(1000))
assert report.verdict == "over-confident"
repaired = fcal.recalibration.Temperature().fit(Normal(torch.zeros(1000), 0.5), torch.randn(1000))
assert abs(repaired.transform(Normal(torch.zeros(1), 0.5)).stddev.item() - 1) < 0.2
assert fcal.cli.main(["evaluate", "predictions.csv"]) == 2  # one line: the command line needs an extra
print(f"fcal {fcal.__version__} from {fcal.__path__[0]}: works")
