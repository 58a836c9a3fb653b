"""Colours of what rays meet: light, haze, sky and ground. Colours are linear."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from fcal.data.street.casting import GROUND, Camera, Floats, Sight
from fcal.data.street.road import Road, road_coordinates
from fcal.data.street.scene import Drive
from fcal.data.street.shadows import Light
from fcal.data.street.solids import FIRST_FACE, Colour, Material, SolidTable
from fcal.data.street.textures import Spots, Values, noise, paint, textured

_LINE: Colour = (0.62, 0.62, 0.60)
_GRASS: Colour = (0.10, 0.16, 0.045)


@dataclass(frozen=True, kw_only=True)
class Shaded:
    """What a camera sees.

    Args:
        colour: Linear colours. Shape ``(3, R, C)``.
        facing: Cosine of the angle between a ray and the normal of what it meets; 1 for the sky. Shape ``(R, C)``.
    """

    colour: Values
    facing: Values


@dataclass(frozen=True, kw_only=True)
class _Rays:
    """Some of the rays, N of them, and where they meet something.

    Args:
        number: Their numbers among all rays. Shape ``(N,)``.
        right: Component of their direction along x of the world. Shape ``(N,)``.
        up: Upward component. Shape ``(N,)``.
        ahead: Component along z. Shape ``(N,)``.
        depth: Depth of what they meet. Shape ``(N,)``.
    """

    number: NDArray[np.intp]
    right: Values
    up: Values
    ahead: Values
    depth: Values


def shade(drive: Drive, poses: Floats, camera: Camera, sight: Sight, light: Light) -> Shaded:
    """Colours of what rays meet.

    Args:
        drive: The street.
        poses: The x, z, sine and cosine of things. Shape ``(T, 4)``.
        camera: The camera.
        sight: What rays meet.
        light: Light on the ground and at things.
    """
    length = np.sqrt(_squared_lengths(camera))
    colour, facing = np.empty((3, length.size), np.float32), np.ones(length.size, np.float32)
    sky, ground, things = _sorted_rays(camera, sight)
    _put(colour, sky.number, _sky(drive, sky))
    _put(colour, ground.number, _hazy(drive, _ground(drive, camera, ground, light), ground.depth))
    facing[ground.number] = np.abs(ground.up) / length.take(ground.number)
    surface = sight.surface.take(things.number)
    material = drive.table.material.take(surface)
    for kind in Material:
        chosen = np.flatnonzero(material == kind)
        if len(chosen):
            rays = _chosen(things, chosen)
            spots = _spots(drive.table, poses, camera, rays, surface.take(chosen))
            normal = _turned(spots, poses)
            _put(colour, rays.number, _hazy(drive, _thing_colour(drive, kind, spots, normal, light), rays.depth))
            met = np.abs(normal[0] * rays.right + normal[1] * rays.up + normal[2] * rays.ahead)
            facing[rays.number] = met / length.take(rays.number)
    return Shaded(colour=colour.reshape(3, *length.shape), facing=facing.reshape(length.shape))


def _put(colour: Values, number: NDArray[np.intp], part: Values) -> None:
    """Put the colours of some rays in their places; by channel, which is faster than all at once."""
    for channel in range(3):
        colour[channel][number] = part[channel]


def _chosen(rays: _Rays, chosen: NDArray[np.intp]) -> _Rays:
    """Some of the rays."""
    return _Rays(**{field.name: getattr(rays, field.name).take(chosen) for field in fields(_Rays)})


def _sorted_rays(camera: Camera, sight: Sight) -> list[_Rays]:
    """The rays that meet the sky, the ground and things."""
    right, upward, ahead = camera.directions()
    up = np.ascontiguousarray(np.broadcast_to(upward, right.shape))
    depth: Values = np.reciprocal(np.maximum(sight.inverse, np.float32(1e-6)))
    masks = sight.surface == 0, sight.surface == GROUND, sight.surface > GROUND
    chosen = [np.flatnonzero(mask) for mask in masks]
    return [
        _Rays(
            number=number,
            right=right.take(number),
            up=up.take(number),
            ahead=ahead.take(number),
            depth=depth.take(number),
        )
        for number in chosen
    ]


def _squared_lengths(camera: Camera) -> Values:
    """Squared lengths of rays. Shape ``(R, C)``."""
    return (camera.rows**2 + 1.0).astype(np.float32)[:, None] + (camera.columns**2).astype(np.float32)


def _column(colour: Colour) -> Values:
    return np.array(colour, np.float32)[:, None]


def _hazy(drive: Drive, colour: Values, depth: Values) -> Values:
    """Colours with haze in front of them."""
    square = (depth * np.float32(1.0 / drive.weather.visibility)) ** 2
    haze = square / (1.0 + square) + 0.06 * depth / (depth + 60.0)
    return colour + (_column(drive.weather.horizon) - colour) * haze


def _sky(drive: Drive, rays: _Rays) -> Values:
    weather, x, up, z = drive.weather, rays.right, rays.up, rays.ahead
    level = np.clip(up / np.sqrt(x * x + z * z + up * up), 0.0, 1.0)
    share = np.sqrt(level)
    colour = _column(weather.horizon) + (_column(weather.zenith) - _column(weather.horizon)) * share
    far = 1.0 / (level + 0.08)
    cover = noise(x * far, z * far, 40.0) + np.float32(2.0 * weather.clouds - 1.0)
    cloud = np.clip(1.6 * cover, 0.0, 1.0) * np.clip(6.0 * level, 0.0, 1.0)
    white = _column(weather.skylight) * (0.9 + 0.2 * noise(x * far, z * far, 90.0)) + 0.35 * _column(weather.sunlight)
    return colour + (white - colour) * (0.8 * cloud)


def _ground(drive: Drive, camera: Camera, rays: _Rays, light: Light) -> Values:
    """Colours of the ground without haze."""
    x = np.float32(camera.position[0]) + rays.depth * rays.right
    z = np.float32(camera.position[2]) + rays.depth * rays.ahead
    outside, lateral = road_coordinates(drive.road, x, z)
    fine = noise(x, z, 18.0) * np.clip(14.0 / rays.depth, 0.0, 1.0)
    coarse = noise(x, z, 1.3)
    shade = 0.12 + 0.025 * fine + 0.03 * coarse
    shade -= 0.025 * np.clip(
        1.0 - 3.0 * np.abs(np.abs(np.abs(lateral) - 0.5 * drive.road.lane) - 0.75), 0.0, 1.0
    )  # tracks
    albedo = shade * _column((1.0, 0.99, 0.97))
    spot = _GroundSpots(outside=outside, lateral=lateral, z=z, fine=fine, coarse=coarse, depth=rays.depth)
    _paint_lines(albedo, drive.road, spot)
    _paint_sides(albedo, drive.road, spot)
    weather = drive.weather
    lit = _column(weather.sunlight) * (np.float32(weather.sun[1]) * light.sun.take(rays.number))
    return albedo * (lit + _column(weather.skylight) * light.sky.take(rays.number))


@dataclass(frozen=True, kw_only=True)
class _GroundSpots:
    """Points on the ground: distance to the road's edge, place, and noise of two scales. Shapes ``(N,)``."""

    outside: Values
    lateral: Values
    z: Values
    fine: Values
    coarse: Values
    depth: Values


def _paint_lines(albedo: Values, road: Road, spots: _GroundSpots) -> None:
    """Lines on the road, and stripes for pedestrians in front of crossings."""
    lateral, z = spots.lateral, spots.z
    crossing = np.full(len(z), np.inf, np.float32)  # distance to the nearest crossing
    for at, half in road.crossings:
        crossing = np.minimum(crossing, np.abs(z - np.float32(at)) - np.float32(half))
    on_road = (spots.outside < -0.02) & (crossing > 0.2) & (spots.coarse > -0.55)  # and not worn off
    if not road.dashed:
        paint(albedo, on_road & (crossing > 0.8) & (crossing < 1.2) & (lateral > 0), _LINE)
        return
    before = on_road & (crossing > 5.0)
    paint(albedo, before & _is_first(z, 6.0, 0.5) & (np.abs(lateral) < 0.08), _LINE)
    if road.parking:
        paint(albedo, before & _is_first(z, 1.5, 0.6) & (np.abs(np.abs(lateral) - road.lane) < 0.06), _LINE)
    stripes = _is_first(lateral, 1.0, 0.5) & (crossing > 0.8) & (crossing < 3.6)
    paint(albedo, on_road & stripes & (spots.outside < -0.2), _LINE)


def _is_first(values: Values, period: float, share: float) -> NDArray[np.bool_]:
    """Whether values lie in the first part of a period."""
    phase = values * np.float32(1.0 / period)
    first: NDArray[np.bool_] = phase - np.floor(phase) < share
    return first


def _paint_sides(albedo: Values, road: Road, spots: _GroundSpots) -> None:
    """Gutter, kerb, pavement, verge and what lies behind."""
    outside, fine, coarse = spots.outside, spots.fine, spots.coarse
    paint(albedo, (outside > -0.25) & (outside < 0.0), (0.075, 0.075, 0.07))
    joints = (_is_first(spots.lateral, 0.5, 0.06) | _is_first(spots.z, 0.5, 0.06)) * np.clip(
        14.0 / spots.depth, 0.0, 1.0
    )
    stone = (0.26 + 0.04 * fine + 0.04 * coarse - 0.07 * joints) * _column((1.0, 0.97, 0.92))
    grass = (1.0 + 0.45 * fine + 0.5 * coarse) * _column(_GRASS)
    is_green = outside >= road.pavement
    if road.paved:
        is_green &= outside < road.pavement + road.verge
    paint(albedo, (outside >= 0.0) & ~is_green, (stone[0], stone[1], stone[2]))
    paint(albedo, is_green, (grass[0], grass[1], grass[2]))
    paint(albedo, (outside >= 0.0) & (outside < 0.16), (0.36, 0.35, 0.33))


def _spots(table: SolidTable, poses: Floats, camera: Camera, rays: _Rays, surface: NDArray[np.int32]) -> Spots:
    """Where rays meet things, in the frames of the things."""
    thing = table.thing.take(surface)
    x, z, sine, cosine = (column.take(thing) for column in poses.astype(np.float32).T)
    away_x = np.float32(camera.position[0]) - x + rays.depth * rays.right
    away_z = np.float32(camera.position[2]) - z + rays.depth * rays.ahead
    height = np.float32(camera.position[1]) + rays.depth * rays.up
    right, front = cosine * away_x - sine * away_z, sine * away_x + cosine * away_z
    return Spots(
        depth=rays.depth,
        x=right,
        y=height,
        z=front,
        normal=_normals(table, surface, (right, height, front)),
        thing=thing.astype(np.int32),
        surface=surface,
        table=table,
    )


def _normals(table: SolidTable, surface: NDArray[np.int32], place: tuple[Values, Values, Values]) -> Values:
    """Unit normals in the frame of the thing. Shape ``(3, N)``."""
    first = FIRST_FACE + len(table.normal)
    normal = table.face_normals.take(surface, axis=1)
    on_quadric = np.flatnonzero(surface >= first)
    if len(on_quadric):
        number = surface[on_quadric] - first
        centre, weight = (values.take(number, axis=1) for values in table.quadrics)
        parts = [(place[axis][on_quadric] - centre[axis]) * weight[axis] for axis in range(3)]
        length = np.sqrt(parts[0] ** 2 + parts[1] ** 2 + parts[2] ** 2)
        for axis in range(3):
            normal[axis][on_quadric] = parts[axis] / length
    return normal


def _turned(spots: Spots, poses: Floats) -> Values:
    """Normals in the world: x, up, z. Shape ``(3, N)``."""
    sine, cosine = (column.take(spots.thing) for column in poses.astype(np.float32).T[2:])
    x, up, z = spots.normal
    return np.stack([cosine * x + sine * z, up, cosine * z - sine * x])


def _thing_colour(drive: Drive, material: Material, spots: Spots, normal: Values, light: Light) -> Values:
    """Colours of points on things of one material, without haze."""
    weather = drive.weather
    albedo, gloss = textured(material, spots)
    toward = normal * _column(weather.sun)
    direct = np.maximum(toward[0] + toward[1] + toward[2], 0.0) * light.things.take(spots.thing)
    # Less of the sky is seen by what faces down, and close to the ground.
    ambient = (0.72 + 0.28 * normal[1]) * (0.7 + 0.3 * np.clip(spots.y, 0.0, 1.0))
    lit = albedo * (_column(weather.sunlight) * direct + _column(weather.skylight) * ambient)
    return lit + _column(weather.horizon) * (gloss * (0.35 + 0.65 * np.maximum(normal[1], 0.0)))
