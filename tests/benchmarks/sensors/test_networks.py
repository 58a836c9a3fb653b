"""Training of the sensors' network: a seed determines it, also for objectives that draw random numbers."""

import torch

from fcal.benchmarks.sensors.networks import StateNetwork, loss_of, optimize


def trained(global_seed):
    generator = torch.Generator().manual_seed(0)
    batch = {name: torch.randn(shape, generator=generator) for name, shape in (("input", (40, 2)), ("target", (40,)))}
    torch.manual_seed(1)
    network = StateNetwork(batch["input"], batch["target"], hidden=4, family="normal")
    torch.manual_seed(global_seed)
    loss = loss_of({"name": "mmd", "lam": 10.0, "form": "additive"})
    optimize(network, batch, loss, steps=3, rate=0.01, size=20, seed=7)
    return network.state_dict()


def test_training_by_mmd_does_not_depend_on_the_global_generator():
    torch.testing.assert_close(trained(2), trained(3), rtol=0, atol=0)
