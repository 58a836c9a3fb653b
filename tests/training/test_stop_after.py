"""A training that ends before its schedule does."""

import pytest
import torch
from training.toys import Net, wave

from fcal.training import FitConfig, fit


def trained(**options):
    torch.manual_seed(0)
    model = Net()
    return model, fit(model, None, wave(60), None, FitConfig(epochs=4, batch_size=16, **options), progress=False)


def test_stop_after_is_the_beginning_of_the_longer_training():
    _, whole = trained()
    _, stopped = trained(stop_after=2)
    assert stopped.epochs_run == 2
    assert stopped.history == whole.history[:2]


def test_stop_after_differs_from_a_shorter_schedule():
    _, stopped = trained(stop_after=2)
    torch.manual_seed(0)
    shorter = fit(Net(), None, wave(60), None, FitConfig(epochs=2, batch_size=16), progress=False)
    assert stopped.history[-1]["learning_rate"] > shorter.history[-1]["learning_rate"]


def test_stop_after_beyond_the_schedule_is_refused():
    with pytest.raises(ValueError, match="expected `stop_after` <= 4, got 5"):
        FitConfig(epochs=4, stop_after=5)
