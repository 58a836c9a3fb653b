"""The course and the profile of a street.

A street runs along a curve over the plane with x to the right and z ahead. A point of it has a distance ``along`` the
curve, measured along z, and a distance ``lateral`` to the right of it.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Real = TypeVar("Real", np.float32, np.float64)

_STEEPEST = 0.9  # slope of the curve, dx / dz


@dataclass(frozen=True, kw_only=True)
class Road:
    """Course and profile of a street, whose two lanes lie on either side of its middle.

    Args:
        bend: Distance along the street at which it begins to bend.
        curvature: Second derivative of its course behind that point, in 1/m; positive bends to the right.
        lane: Width of a lane.
        parking: Width of the strip of parked cars on either side; 0 for none.
        pavement: Width of the pavements.
        verge: Width of the strip of grass beside them.
        crossings: Middle and half width of streets that cross.
        end: Distance along the street at which it ends at a crossing; infinite if it does not.
        paved: Whether the ground between verge and houses is paved; otherwise it is grass.
        dashed: Whether lines are painted on the road.
    """

    bend: float
    curvature: float
    lane: float
    parking: float
    pavement: float
    verge: float
    crossings: tuple[tuple[float, float], ...]
    end: float
    paved: bool
    dashed: bool

    @property
    def kerb(self) -> float:
        """Distance of the kerbs from the middle."""
        return self.lane + self.parking

    @property
    def edge(self) -> float:
        """Distance of the outer edge of the verge from the middle."""
        return self.kerb + self.pavement + self.verge

    def is_clear(self, along: float, margin: float) -> bool:
        """Whether no crossing is nearer than ``margin``, and the street has not ended."""
        return along + margin < self.end and all(abs(along - middle) > half + margin for middle, half in self.crossings)


def slope(road: Road, along: NDArray[Real]) -> NDArray[Real]:
    """Slope dx / dz of the street."""
    return np.clip(road.curvature * np.maximum(along - road.bend, 0.0), -_STEEPEST, _STEEPEST)


def middle(road: Road, along: NDArray[Real]) -> NDArray[Real]:
    """The x of the middle of the street: straight, then a parabola, then straight again."""
    curved = np.maximum(along - road.bend, 0.0)
    longest = _STEEPEST / abs(road.curvature) if road.curvature else np.inf
    parabola = np.minimum(curved, longest)
    return road.curvature * parabola * (0.5 * parabola + np.maximum(curved - longest, 0.0))


def placed(
    road: Road, along: NDArray[np.float64], lateral: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The x and z of points of the street, and sine and cosine of its direction there, measured from z towards x."""
    steep = slope(road, along)
    cosine = 1.0 / np.sqrt(1.0 + steep * steep)
    sine = steep * cosine
    return middle(road, along) + lateral * cosine, along - lateral * sine, sine, cosine


def road_coordinates(
    road: Road, x: NDArray[np.float32], z: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Signed distance to the nearest road's edge, negative on roads, and the distance to the right of the middle."""
    steep = slope(road, z)
    lateral = (x - middle(road, z)) / np.sqrt(1.0 + steep * steep)
    outside = np.where(z < road.end, np.abs(lateral) - road.kerb, np.float32(np.inf))
    for at, half in road.crossings:
        outside = np.minimum(outside, np.abs(z - at) - half)
    return outside, lateral
