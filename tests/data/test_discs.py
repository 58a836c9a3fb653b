"""Rendered discs against a loop over pixels in integer arithmetic."""

import numpy as np
import pytest

from fcal.data import discs as room
from fcal.data.discs import Discs, render


def drawn(count: int, each: int, size: int, seed: int = 0, largest: float = 0.3) -> Discs:
    """Random discs, some of them beyond the edges and some absent."""
    generator, edge = np.random.default_rng(seed), 16 * size
    radius = generator.integers(0, int(largest * edge) + 1, (count, each), dtype=np.int32)
    radius[generator.random((count, each)) < 0.2] = -generator.integers(1, edge)
    return Discs(
        x=generator.integers(-edge // 4, edge + edge // 4, (count, each), dtype=np.int32),
        y=generator.integers(-edge // 4, edge + edge // 4, (count, each), dtype=np.int32),
        radius=radius,
        colour=generator.integers(0, 8, (count, each, 3), dtype=np.uint8),
        background=generator.integers(0, 8, (count, 3), dtype=np.uint8),
    )


def by_distance(discs: Discs, size: int) -> np.ndarray:
    """Every pixel compared with every disc, in integer arithmetic; the last disc wins."""
    centres = 16 * np.arange(size, dtype=np.int64) + 8
    images = np.empty((len(discs), size, size, 3), np.uint8)
    images[...] = discs.background[:, None, None]
    for image, x, y, radius, colour in zip(images, discs.x, discs.y, discs.radius, discs.colour, strict=True):
        for k in range(len(x)):
            squared = (centres - x[k]) ** 2 + ((centres - y[k]) ** 2)[:, None]
            image[(squared <= int(radius[k]) ** 2) & (radius[k] >= 0)] = colour[k]
    return 36 * images.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("size", [1, 7, 8, 13, 63, 64, 65, 100, 128, 130, 200])
@pytest.mark.parametrize("each", [0, 1, 9])
def test_render_is_the_last_disc_around_every_pixel_centre(size, each):
    discs = drawn(20, each, size, seed=size)
    np.testing.assert_array_equal(render(discs, size), by_distance(discs, size))


def test_render_takes_many_chunks_and_as_many_discs_as_a_word_has_bits():
    few, many = drawn(300, 3, 64, seed=1), drawn(4, 64, 40, seed=2)
    assert room._PIXELS_AT_ONCE < 300 * 64**2
    np.testing.assert_array_equal(render(few, 64), by_distance(few, 64))
    np.testing.assert_array_equal(render(many, 40), by_distance(many, 40))


def test_render_is_exact_for_huge_discs():
    # Radii beyond what float32 squares exactly; the edge of each passes through the image.
    generator = np.random.default_rng(3)
    radius = np.sort(generator.integers(2**11 + 1, 2**25, (40, 1), dtype=np.int32), axis=0)
    radius[:8] = generator.integers(2**11 + 1, 2**15, (8, 1))
    discs = drawn(40, 1, 64, seed=4)
    far = Discs(x=radius + 500, y=discs.y, radius=radius, colour=discs.colour, background=discs.background)
    result = render(far, 64)
    np.testing.assert_array_equal(result, by_distance(far, 64))
    assert (result.max(axis=(1, 2, 3)) > result.min(axis=(1, 2, 3))).any()


def test_pixel_centre_on_the_edge_belongs_to_the_disc():
    # 3-4-5: the centre of pixel (3, 4), counted from that of (0, 0), is exactly 5 pixels away.
    one = {"x": np.array([[8]]), "y": np.array([[8]])}
    colours = {"colour": np.full((1, 1, 3), 7, np.uint8), "background": np.zeros((1, 3), np.uint8)}
    on = render(Discs(**one, radius=np.array([[80]]), **colours), 8)
    below = render(Discs(**one, radius=np.array([[79]]), **colours), 8)
    assert on[0, 0, 4, 3] == on[0, 0, 3, 4] == on[0, 0, 0, 5] == 252
    assert below[0, 0, 4, 3] == below[0, 0, 3, 4] == below[0, 0, 0, 5] == 0


@pytest.mark.parametrize("size", [24, 140])
def test_discs_that_end_on_pixel_centres_are_drawn_to_the_last_pixel(size):
    # Whole pixels, centred on a pixel: every disc ends in four single pixels, some alone in their tile.
    discs = drawn(200, 3, size, seed=5)
    centred = {name: getattr(discs, name) // 16 * 16 + 8 for name in ("x", "y")}
    whole = Discs(**centred, radius=discs.radius // 16 * 16, colour=discs.colour, background=discs.background)
    np.testing.assert_array_equal(render(whole, size), by_distance(whole, size))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_ceiling_of_a_rounded_root_is_that_of_the_root(kind):
    # What the half width of a row rests on: for all that float32 is trusted with, and the largest of float64.
    first, last = (1, room._LARGEST_IN_FLOAT32) if kind == np.float32 else (2**25 - 2**18, 2**25)
    roots = np.arange(first, last + 1, dtype=np.int64)
    just_above = np.ceil(np.sqrt((roots**2 + 1).astype(kind)))
    np.testing.assert_array_equal(just_above, roots + 1)
    np.testing.assert_array_equal(np.ceil(np.sqrt((roots**2).astype(kind))), roots)


def test_half_width_is_the_largest_whole_one():
    radius = np.arange(0, 2049, 7, dtype=np.int32)
    down = np.random.default_rng(0).integers(-2200, 2200, (8, len(radius)), dtype=np.int32)
    half = room._half_width(down, radius).astype(np.int64)
    room_left = radius.astype(np.int64) ** 2 - down.astype(np.int64) ** 2
    assert ((half == -1) == (room_left < 0)).all()
    inside = half >= 0
    assert (half**2 <= room_left)[inside].all()
    assert ((half + 1) ** 2 > room_left)[inside].all()


def test_render_leaves_numpy_as_it_was():
    before = np.getbufsize()
    render(drawn(3, 2, 16), 16)
    assert np.getbufsize() == before


def test_render_of_no_images_is_empty():
    assert render(drawn(0, 3, 16), 16).shape == (0, 3, 16, 16)
