"""Run in an environment that holds nothing but the installed wheel."""

import torch
from torch.distributions import Laplace, Normal

import fcal

torch.manual_seed(0)
scale = torch.ones(1000, requires_grad=True)
for family in (Normal, Laplace):
    loss = fcal.losses.CombinedLoss(lam=0.5)(family(torch.zeros(1000), scale), torch.randn(1000))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(scale.grad).all()
print(f"fcal {fcal.__version__} from {fcal.__path__[0]}: works")
