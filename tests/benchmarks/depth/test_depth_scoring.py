"""Numbers of predicted depth by drive."""

import numpy as np
import torch
from torch.distributions import Normal

from fcal.benchmarks.depth.frames import Labels
from fcal.benchmarks.depth.scoring import by_drive, scored


def labels(truth=None):
    """Four frames of 300 pixels, of which the last two are of another drive."""
    generator = torch.Generator().manual_seed(0)
    target = 5 + 10 * torch.rand(1200, generator=generator, dtype=torch.float64)
    image = torch.arange(4).repeat_interleave(300)
    return Labels(
        target, image, torch.rand(1200, generator=generator), truth, None, ["first", "first", "other", "other"]
    )


def test_drives_have_their_own_accuracy_and_scale():
    """The second drive has errors of twice the predicted sd; SiLog is the sd of log quotients, by NumPy."""
    test, generator = labels(), torch.Generator().manual_seed(1)
    size = torch.where(test.image < 2, 0.5, 1.0).double()
    mean = test.target + size * torch.randn(1200, generator=generator, dtype=torch.float64)
    found = by_drive(Normal(mean, torch.full_like(mean, 0.5)), test, bins=10, df=20)
    assert [entry["frames"] for entry in found.values()] == [2, 2]
    for name, rows in (("first", slice(0, 600)), ("other", slice(600, 1200))):
        quotients = np.log(mean[rows].numpy()) - np.log(test.target[rows].numpy())
        np.testing.assert_allclose(found[name]["silog"], quotients.std(), rtol=1e-4)
    # the scale of 600 residuals has a relative standard error of 3 %: five of them
    np.testing.assert_allclose([found["first"]["scale"], found["other"]["scale"]], [1.0, 2.0], rtol=0.15)


def test_drives_are_scored_of_real_frames_alone():
    test = labels()
    pred = Normal(test.target + 0.1, torch.full_like(test.target, 0.2))
    assert "by_drive" in scored(pred, test, bins=10, df=20)
    assert "by_drive" not in scored(pred, test._replace(truth=test.target), bins=10, df=20)
