"""What stands where along a street, drawn from a seed: the road, the houses, who drives and who walks, the weather.

Only sums, products, quotients and square roots are used, which give the same bits on every machine.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fcal.data.street.road import Road, placed
from fcal.data.street.solids import Colour, SolidTable, Thing, Vector, solid_table
from fcal.data.street.things import (
    Draws,
    car,
    cyclist,
    hedge,
    house,
    lamp,
    lorry,
    pedestrian,
    sign,
    tree,
    van,
)

FRAME_SECONDS = 0.3  # between frames of a drive
_BEHIND, _AHEAD = 12.0, 110.0  # of the camera, in metres: where things are placed
_AWAY, _TOWARDS, _LEFT, _RIGHT = (0.0, 1.0), (0.0, -1.0), (-1.0, 0.0), (1.0, 0.0)  # headings: to the right, ahead


@dataclass(frozen=True, kw_only=True)
class Weather:
    """Light and air.

    Args:
        sun: Unit vector towards the sun: x, up, z.
        sunlight: Colour of direct light; black if the sky is overcast.
        skylight: Colour of the light from all of the sky.
        zenith: Colour of the sky above.
        horizon: Colour of the sky at the horizon, and of haze.
        clouds: Share of the sky that is covered.
        visibility: Distance at which half of the light is haze.
    """

    sun: Vector
    sunlight: Colour
    skylight: Colour
    zenith: Colour
    horizon: Colour
    clouds: float
    visibility: float


@dataclass(frozen=True, kw_only=True)
class Drive:
    """A street with everything in it, and how the camera moves through it.

    Args:
        road: The street.
        weather: Light and air.
        table: All solids.
        along: Where things are at time 0. Shape ``(T,)``.
        lateral: Where things are across the street. Shape ``(T,)``.
        heading: Sine and cosine of the angle from the street's direction to a thing's front. Shape ``(T, 2)``.
        speed: Speed of things along the street, in m/s. Shape ``(T,)``.
        pace: Speed of the camera.
        lane: Lateral position of the camera.
    """

    road: Road
    weather: Weather
    table: SolidTable
    along: NDArray[np.float64]
    lateral: NDArray[np.float64]
    heading: NDArray[np.float64]
    speed: NDArray[np.float64]
    pace: float
    lane: float

    def poses(self, seconds: float) -> NDArray[np.float64]:
        """The x and z of things at a time, and sine and cosine of their direction. Shape ``(T, 4)``."""
        x, z, sine, cosine = placed(self.road, self.along + self.speed * seconds, self.lateral)
        turn, ahead = self.heading[:, 0], self.heading[:, 1]
        return np.stack([x, z, sine * ahead + cosine * turn, cosine * ahead - sine * turn], axis=1)


class _Placements:
    """Things put down one by one."""

    def __init__(self) -> None:
        self.things: list[Thing] = []
        self.rows: list[tuple[float, float, float, float, float]] = []

    def put(self, thing: Thing, along: float, lateral: float, heading: tuple[float, float], speed: float = 0.0) -> None:
        self.things.append(thing)
        self.rows.append((along, lateral, *heading, speed))


@dataclass(frozen=True)
class _Character:
    """What kind of street it is."""

    floors: tuple[int, int]
    flat: float  # share of flat roofs
    gap: tuple[float, float]  # between houses
    missing: float  # share of houses left out
    garden: tuple[float, float]  # from the verge to the houses
    verge: tuple[float, float]
    trees: tuple[float, float]  # metres between them
    hedges: float
    parked: float  # share of parking spaces taken
    people: tuple[int, int]


_CHARACTERS = (
    _Character((3, 5), 0.5, (0.0, 0.5), 0.08, (0.0, 0.3), (0.0, 0.1), (14.0, 40.0), 0.0, 0.75, (4, 12)),  # town
    _Character((2, 3), 0.1, (2.0, 7.0), 0.15, (2.0, 6.0), (0.0, 1.5), (9.0, 22.0), 0.7, 0.45, (1, 6)),  # residential
    _Character((2, 5), 0.4, (0.5, 6.0), 0.15, (1.0, 4.0), (1.5, 4.0), (7.0, 12.0), 0.3, 0.6, (2, 8)),  # avenue
    _Character((1, 2), 0.2, (6.0, 20.0), 0.5, (4.0, 12.0), (1.0, 4.0), (5.0, 14.0), 0.5, 0.25, (0, 4)),  # outskirts
)


def draw_drive(seed: int, number: int, frames: int) -> Drive:
    """A street, drawn from a seed.

    Args:
        seed: Seed of all drives.
        number: Number of the drive.
        frames: Frames that the camera takes on it.

    Example:
        >>> drive = draw_drive(seed=0, number=3, frames=10)
        >>> len(drive.table.things) == len(drive.poses(0.0))
        True
    """
    draws = Draws(seed, number)
    character = draws.one_of(_CHARACTERS)
    pace = draws.number(4.0, 11.0)
    travel = pace * FRAME_SECONDS * (frames - 1)
    road = _draw_road(draws, character, travel)
    placements = _Placements()
    for side in (1, -1):
        garden = draws.number(*character.garden)
        _put_houses(draws, placements, road, character, side * (road.edge + garden), travel)
        _put_trees(draws, placements, road, character, side, garden, travel)
        _put_hedges(draws, placements, road, character, side, travel)
        _put_parked(draws, placements, road, character, side, travel)
        _put_lamps(draws, placements, road, side, travel)
    _put_end(draws, placements, road, character)
    _put_traffic(draws, placements, road, pace, travel)
    _put_people(draws, placements, road, character, travel)
    rows = np.array(placements.rows, np.float64).reshape(-1, 5)
    return Drive(
        road=road,
        weather=_draw_weather(draws),
        table=solid_table(tuple(placements.things)),
        along=rows[:, 0],
        lateral=rows[:, 1],
        heading=rows[:, 2:4],
        speed=rows[:, 4],
        pace=pace,
        lane=0.5 * road.lane,
    )


def _draw_road(draws: Draws, character: _Character, travel: float) -> Road:
    bends = draws.chance(0.5)
    curvature = draws.number(0.002, 0.006) * draws.one_of((1.0, -1.0)) if bends else 0.0
    half = draws.number(3.0, 5.0)
    crossings = [(draws.number(15.0, travel + 70.0), half)] if draws.chance(0.5) else []
    end = np.inf
    if draws.chance(0.35):
        end = travel + draws.number(18.0, 75.0)
        crossings = [(at, width) for at, width in crossings if at + width + 12.0 < end - half]
        crossings.append((end, half))
    return Road(
        bend=draws.number(0.0, travel + 30.0),
        curvature=curvature,
        lane=draws.number(2.8, 3.7),
        parking=2.1 if draws.chance(0.7) else 0.0,
        pavement=draws.number(1.6, 3.2),
        verge=draws.number(*character.verge),
        crossings=tuple(crossings),
        end=float(end),
        paved=draws.chance(0.7 if character.garden[1] < 1 else 0.2),
        dashed=draws.chance(0.75),
    )


def _put_houses(
    draws: Draws, placements: _Placements, road: Road, character: _Character, lateral: float, travel: float
) -> None:
    along = -_BEHIND - draws.number(0.0, 10.0)
    while along < min(travel + _AHEAD, road.end):
        width = draws.number(8.0, 16.0)
        building = house(draws, width, draws.integer(*character.floors), flat=draws.chance(character.flat))
        if not draws.chance(character.missing) and road.is_clear(along + width / 2, width / 2 + 1.5):
            back = lateral + draws.number(0.0, 0.5) * (1 if lateral > 0 else -1)
            placements.put(building, along + width / 2, back, _LEFT if lateral > 0 else _RIGHT)
        along += width + draws.number(*character.gap)


def _put_end(draws: Draws, placements: _Placements, road: Road, character: _Character) -> None:
    """Houses across the end of the street."""
    if not np.isfinite(road.end):
        return
    lateral = -45.0
    back = road.crossings[-1][1] + road.pavement + draws.number(0.5, 5.0)
    while lateral < 45.0:
        width = draws.number(9.0, 16.0)
        building = house(draws, width, draws.integer(*character.floors), flat=draws.chance(character.flat))
        placements.put(building, road.end + back + draws.number(0.0, 0.5), lateral + width / 2, _TOWARDS)
        lateral += width + draws.number(0.0, 0.5 * character.gap[1])


def _put_trees(
    draws: Draws, placements: _Placements, road: Road, character: _Character, side: int, garden: float, travel: float
) -> None:
    """Trees in the verge, in the gardens, or on the pavement."""
    line = road.kerb + 0.7
    if road.verge > 1.0:
        line = road.edge - 0.5 * road.verge
    elif garden > 2.5:
        line = road.edge + 0.5 * garden
    along = -_BEHIND + draws.number(0.0, 10.0)
    while along < min(travel + _AHEAD, road.end - 3.0):
        if road.is_clear(along, 3.0):
            placements.put(tree(draws), along, side * (line + draws.number(-0.2, 0.2)), _AWAY)
        along += draws.number(*character.trees)


def _put_hedges(
    draws: Draws, placements: _Placements, road: Road, character: _Character, side: int, travel: float
) -> None:
    along = -_BEHIND
    while along < min(travel + _AHEAD, road.end - 3.0):
        length = draws.number(4.0, 12.0)
        if draws.chance(character.hedges) and road.is_clear(along + length / 2, length / 2 + 1.0):
            heading = _LEFT if side > 0 else _RIGHT
            placements.put(hedge(draws, length), along + length / 2, side * (road.edge + 0.4), heading)
        along += length + draws.number(1.0, 4.0)


def _put_parked(
    draws: Draws, placements: _Placements, road: Road, character: _Character, side: int, travel: float
) -> None:
    if road.parking == 0.0:
        return
    along = -_BEHIND + draws.number(0.0, 6.0)
    heading = _AWAY if side > 0 else _TOWARDS
    while along < min(travel + _AHEAD, road.end):
        kind = van if draws.chance(0.12) else car
        vehicle = kind(draws)
        if draws.chance(character.parked) and road.is_clear(along, 5.0):
            turned = heading if draws.chance(0.9) else (heading[0], -heading[1])
            placements.put(vehicle, along, side * (road.kerb - 1.05 + draws.number(-0.1, 0.1)), turned)
        along += 0.5 * vehicle.size[2] + draws.number(3.2, 4.6)


def _put_lamps(draws: Draws, placements: _Placements, road: Road, side: int, travel: float) -> None:
    along, step = -_BEHIND + draws.number(0.0, 20.0), draws.number(18.0, 32.0)
    while along < min(travel + _AHEAD, road.end):
        if road.is_clear(along, 1.0):
            placements.put(lamp(draws), along, side * (road.kerb + 0.45), _LEFT if side > 0 else _RIGHT)
        along += step
    for _ in range(draws.integer(1, 4)):
        along = draws.number(0.0, min(travel + 60.0, road.end))
        if road.is_clear(along, 1.0):
            placements.put(sign(draws), along, side * (road.kerb + 0.5), _AWAY if side > 0 else _TOWARDS)


def _put_traffic(draws: Draws, placements: _Placements, road: Road, pace: float, travel: float) -> None:
    """Cars ahead and oncoming cars; none of them comes nearer than a few metres to the camera or to the end."""
    seconds = travel / pace
    if draws.chance(0.6):
        vehicle = _vehicle(draws)
        gap, least = draws.number(9.0, 45.0), 6.0 + 0.5 * vehicle.size[2]
        relative = draws.number(-2.5, 2.0)
        relative = max(relative, (least - gap) / seconds) if seconds else relative
        gap = max(gap, least)
        if gap + (pace + relative) * seconds < road.end - 8.0:
            placements.put(vehicle, gap, 0.5 * road.lane, _AWAY, pace + relative)
    along, speed = draws.number(10.0, 40.0), draws.number(4.0, 11.0)
    for _ in range(draws.integer(0, 5)):
        vehicle = _vehicle(draws)
        if along < road.end - 8.0:
            placements.put(vehicle, along, -0.5 * road.lane + draws.number(-0.2, 0.2), _TOWARDS, -speed)
        along += vehicle.size[2] + draws.number(8.0, 40.0)
    for _ in range(draws.integer(0, 2)):
        towards, along = draws.chance(0.5), draws.number(8.0, travel + 40.0)
        if along < road.end - 8.0:
            lateral = (road.lane - 0.5) * (-1.0 if towards else 1.0)
            rider_pace = -draws.number(3.0, 5.0) if towards else draws.number(3.0, 5.0)
            if along + rider_pace * seconds < road.end - 4.0:
                placements.put(cyclist(draws), along, lateral, _TOWARDS if towards else _AWAY, rider_pace)


def _vehicle(draws: Draws) -> Thing:
    kind = draws.number(0.0, 1.0)
    return lorry(draws) if kind < 0.08 else van(draws) if kind < 0.2 else car(draws)


def _put_people(draws: Draws, placements: _Placements, road: Road, character: _Character, travel: float) -> None:
    for _ in range(draws.integer(*character.people)):
        side, along = draws.one_of((1, -1)), draws.number(4.0, min(travel + 50.0, road.end))
        lateral = side * (road.kerb + draws.number(0.9, max(1.0, road.pavement - 0.3)))
        away = draws.chance(0.5)
        speed = draws.number(0.8, 1.6) if draws.chance(0.7) else 0.0
        placements.put(pedestrian(draws), along, lateral, _AWAY if away else _TOWARDS, speed if away else -speed)
    for at, half in road.crossings:
        for _ in range(draws.integer(0, 2)):  # on the far side of the road, where the camera does not drive
            heading = draws.one_of((_LEFT, _RIGHT))
            placements.put(pedestrian(draws), at - half - 2.0, -draws.number(0.4, road.kerb), heading)


def _draw_weather(draws: Draws) -> Weather:
    """Sunny, cloudy, overcast or late in the day."""
    mood = draws.one_of(("sunny", "sunny", "cloudy", "overcast", "evening"))
    east, north = draws.number(-1.0, 1.0), draws.number(-1.0, 0.6)
    up = {"evening": draws.number(0.15, 0.3)}.get(mood, draws.number(0.5, 1.4))
    length = float(np.sqrt(east * east + north * north + up * up))
    strength = draws.number(0.85, 1.15)
    sunlight, skylight, zenith, horizon, clouds, visibility = {
        "sunny": ((1.70, 1.58, 1.36), (0.34, 0.40, 0.50), (0.10, 0.24, 0.60), (0.52, 0.66, 0.86), 0.25, 500.0),
        "cloudy": ((1.05, 1.00, 0.92), (0.48, 0.52, 0.58), (0.18, 0.30, 0.56), (0.62, 0.70, 0.80), 0.6, 350.0),
        "overcast": ((0.0, 0.0, 0.0), (0.86, 0.90, 0.95), (0.62, 0.66, 0.72), (0.80, 0.82, 0.84), 1.0, 220.0),
        "evening": ((1.60, 1.05, 0.60), (0.30, 0.32, 0.42), (0.12, 0.18, 0.42), (0.90, 0.62, 0.40), 0.35, 350.0),
    }[mood]
    return Weather(
        sun=(east / length, up / length, north / length),
        sunlight=_scaled(sunlight, strength),
        skylight=_scaled(skylight, strength),
        zenith=zenith,
        horizon=horizon,
        clouds=clouds * draws.number(0.7, 1.0),
        visibility=visibility * draws.number(0.7, 1.4),
    )


def _scaled(colour: Colour, factor: float) -> Colour:
    return colour[0] * factor, colour[1] * factor, colour[2] * factor
