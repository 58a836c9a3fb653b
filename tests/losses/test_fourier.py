"""Fourier sums and series against their definitions."""

import numpy as np
import pytest
import torch

from fcal.losses import fourier


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch):
    monkeypatch.setattr(fourier, "_CHUNK", 7)  # several chunks, the last one shorter


def points(n=20):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(n, dtype=torch.float64, generator=generator)
    return values.requires_grad_(), torch.rand(n, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("count", [1, 2, 9, 10, 50])
def test_sums_are_their_definition(count):
    values, weight = points()
    x, w = values.detach().numpy(), weight.numpy()
    expected = [sum(w * np.exp(1j * m * 0.3 * x)) for m in range(count)]
    found = fourier.fourier_sums(values, weight, 0.3, count).detach()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 9, 10, 50])
def test_series_is_its_definition(count):
    values, _ = points()
    c = torch.randn(count, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))
    x = values.detach().numpy()
    expected = sum(c[m].item() * np.exp(1j * m * 0.3 * x) for m in range(count)).real
    np.testing.assert_allclose(fourier.fourier_series(values, c, 0.3).detach(), expected, rtol=0, atol=1e-12)


def test_gradients_are_those_of_differences():
    values, weight = points()
    c = torch.randn(9, dtype=torch.complex128, generator=torch.Generator().manual_seed(1)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: fourier.fourier_sums(x, weight, 0.3, 9), values)
    assert torch.autograd.gradcheck(lambda x, c: fourier.fourier_series(x, c, 0.3), (values, c))


def test_high_frequencies_keep_their_digits():
    values, weight = points(3000)
    found = fourier.fourier_sums(values, weight, 1.0, 2000)
    order = torch.arange(2000, dtype=torch.float64)
    expected = (weight * torch.exp(1j * order.unsqueeze(-1) * values.detach())).sum(-1)
    torch.testing.assert_close(found.detach(), expected, rtol=0, atol=1e-9)


def test_empty_batch_sums_to_nothing_and_keeps_its_graph():
    values, weight = points(0)
    sums = fourier.fourier_sums(values, weight, 0.3, 5)
    assert not sums.any()
    sums.real.sum().backward()
    assert values.grad.shape == (0,)
