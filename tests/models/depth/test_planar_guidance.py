"""Local planar guidance against rays that meet planes, one by one."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fcal.models.depth import PlanarGuidance, local_planar_guidance


def planes(batch=2, rows=2, columns=3, tilt=0.6):
    generator = torch.Generator().manual_seed(0)
    angle, turn, distance = torch.rand(3, batch, rows, columns, generator=generator, dtype=torch.float64)
    angle, turn, distance = tilt * angle, 6.3 * turn, 1 + 30 * distance
    return torch.stack([angle.sin() * turn.cos(), angle.sin() * turn.sin(), angle.cos()], 1), distance


def ray_meets_plane(normal, distance, direction):
    """Depth at which a ray from the camera meets the plane through a point, given by two vectors within the plane."""
    point = distance * normal
    helper = np.array([1.0, 0.0, 0.0]) if abs(normal[0]) < 0.9 else np.array([0.0, 1.0, 0.0])
    first = np.cross(normal, helper)
    second = np.cross(normal, first)
    along, _, _ = np.linalg.solve(np.stack([direction, -first, -second], 1), point)
    return (along * direction)[2]


@pytest.mark.parametrize("patch", [2, 4, 8])
def test_guidance_is_where_rays_meet_planes(patch):
    normal, distance = planes()
    depth = local_planar_guidance(normal, distance, patch)
    assert depth.shape == (2, 2 * patch, 3 * patch)
    for index in np.ndindex(*depth.shape):
        image, y, x = index
        cell = (image, slice(None), y // patch, x // patch)
        u, v = ((x % patch) + 0.5) / patch - 0.5, ((y % patch) + 0.5) / patch - 0.5
        expected = ray_meets_plane(
            normal[cell].numpy(), distance[image, y // patch, x // patch].item(), np.array([u, v, 1.0])
        )
        np.testing.assert_allclose(depth[index].item(), expected, rtol=1e-9)


def test_guidance_is_finite_and_positive_for_planes_along_the_ray():
    normal = torch.tensor([1.0, 0.0, 0.0]).reshape(1, 3, 1, 1)
    depth = local_planar_guidance(normal, torch.full((1, 1, 1), 2.0), 8)
    assert depth.isfinite().all()
    assert (depth > 0).all()


def test_guidance_has_the_gradient_of_its_definition():
    normal, distance = planes(1, 2, 2)
    inputs = (normal.requires_grad_(), distance.requires_grad_())
    assert torch.autograd.gradcheck(lambda n, d: local_planar_guidance(n, d, 4), inputs)


def test_layer_starts_with_planes_that_face_the_camera_at_the_initial_depth():
    torch.manual_seed(0)
    depth = PlanarGuidance(32, 8, initial=0.25)(torch.zeros(1, 32, 2, 3))
    assert_close(depth, torch.full((1, 1, 16, 24), 0.25), rtol=0.25, atol=0)


@pytest.mark.parametrize("channels", [1, 3, 8, 20, 128])
def test_layer_takes_any_number_of_channels(channels):
    assert PlanarGuidance(channels, 2, initial=0.2)(torch.randn(2, channels, 3, 4)).shape == (2, 1, 6, 8)


@pytest.mark.parametrize("value", [-1e4, 0.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_and_its_gradient_are_finite_for_extreme_features(value, dtype):
    torch.manual_seed(0)
    layer = PlanarGuidance(16, 8, initial=0.2).to(dtype)
    features = torch.full((1, 16, 2, 2), value, dtype=dtype, requires_grad=True)
    depth = layer(features)
    depth.sum().backward()
    assert depth.isfinite().all()
    assert features.grad.isfinite().all()
