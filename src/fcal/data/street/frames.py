"""Frames of the street world: image, true depth, measured depth, its sigma, instances, labels and objects."""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fcal._checks import check_flag, check_integer
from fcal.data.bokeh import uniforms
from fcal.data.street.casting import GROUND, Camera, Extent, Sight, ThingFrames, cast
from fcal.data.street.lidar import LidarConfig, lidar_sigma, measured, occlusion_edges, scanned
from fcal.data.street.road import placed, road_coordinates
from fcal.data.street.scene import FRAME_SECONDS, Drive, draw_drive
from fcal.data.street.shading import Shaded, shade
from fcal.data.street.shadows import ground_light
from fcal.data.street.solids import Vector

# Camera 02 of KITTI's drives of 2011_09_26, whose pixels have their middle at whole numbers.
KITTI_HEIGHT, KITTI_WIDTH = 375, 1242
_KITTI_FOCAL, _KITTI_MIDDLE = 721.5377, (609.5593, 172.854)
_CAMERA_HEIGHT = 1.65  # metres
_STREAMS = {"drive": 0, "frame": 1}  # independent random numbers of one seed
_MOST_DRIVES = 9999  # their names have four digits
_PER_FRAME = 8  # random numbers of a frame besides those of its pixels
_PARTLY, _LARGELY = 0.1, 0.5  # occluded shares at which KITTI's levels 1 and 2 begin
LABELS = {  # Cityscapes' numbers of classes
    "sky": 23,
    "road": 7,
    "sidewalk": 8,
    "terrain": 22,
    "building": 11,
    "wall": 12,
    "fence": 13,
    "pole": 17,
    "traffic sign": 20,
    "vegetation": 21,
    "person": 24,
    "rider": 25,
    "car": 26,
    "truck": 27,
    "bicycle": 33,
}


@dataclass(frozen=True, kw_only=True)
class StreetConfig:
    """Configuration of a street world.

    Args:
        frames: Number of frames.
        frames_per_drive: Frames of one drive: they show the same street, through which the camera moves.
        seed: Seed of everything; the same seed gives the same frames on every machine.
        height: Height of frames in pixels.
        width: Width of frames in pixels; the focal length is 721.5 pixels at KITTI's width of 1242.
        antialiasing: Whether the colour of a pixel is averaged over nine rays; depth is that of the middle one.
        lidar: Density and noise of the measured depth.
    """

    frames: int = 800
    frames_per_drive: int = 20
    seed: int = 0
    height: int = 64
    width: int = 208
    antialiasing: bool = True
    lidar: LidarConfig = field(default_factory=LidarConfig)

    def __post_init__(self) -> None:
        check_integer("frames", self.frames, at_least=1, at_most=1_000_000)
        check_integer("frames_per_drive", self.frames_per_drive, at_least=1, at_most=100)
        check_integer("seed", self.seed, at_least=0, at_most=2**63 - 1)
        check_integer("height", self.height, at_least=8, at_most=4096)
        check_integer("width", self.width, at_least=8, at_most=8192)
        check_flag("antialiasing", self.antialiasing)
        if not isinstance(self.lidar, LidarConfig):
            raise TypeError(f"expected `lidar` a LidarConfig, got {type(self.lidar).__name__}")
        if self.drives > _MOST_DRIVES:
            limit = f"{_MOST_DRIVES} drives of {self.frames_per_drive} frames"
            raise ValueError(f"expected `frames` of at most {limit}, got {self.frames}")

    @property
    def drives(self) -> int:
        """Number of drives."""
        return -(-self.frames // self.frames_per_drive)

    @property
    def focal(self) -> float:
        """Focal length in pixels."""
        return _KITTI_FOCAL * self.width / KITTI_WIDTH

    @property
    def principal_point(self) -> tuple[float, float]:
        """Column and row of the optical axis; the middle of the first pixel is 0."""
        across, down = self.width / KITTI_WIDTH, self.height / KITTI_HEIGHT
        return (_KITTI_MIDDLE[0] + 0.5) * across - 0.5, (_KITTI_MIDDLE[1] + 0.5) * down - 0.5


@dataclass(frozen=True, kw_only=True)
class StreetObject:
    """An object to detect. Boxes are left, top, right and bottom edges in pixels; the first pixel spans 0 to 1.

    Args:
        kind: ``"Car"``, ``"Van"``, ``"Truck"``, ``"Pedestrian"`` or ``"Cyclist"``.
        number: Its number in the map of instances; the same in all frames of a drive.
        box: Edges of its visible pixels.
        full_box: Edges of the pixels it would have if nothing stood in front of it.
        pixels: Number of visible pixels.
        occluded: Share of its pixels within the image that something else hides.
        truncated: Share of its projected 3-D box that lies outside of the image.
        location: Middle of its bottom in camera coordinates (x right, y down, z ahead), in metres.
        size: Height, width and length, in metres.
        yaw: Rotation around the camera's y axis as in KITTI: 0 if its front points to the right, -pi / 2 if away.
    """

    kind: str
    number: int
    box: tuple[int, int, int, int]
    full_box: tuple[int, int, int, int]
    pixels: int
    occluded: float
    truncated: float
    location: Vector
    size: Vector
    yaw: float

    @property
    def occlusion(self) -> int:
        """Level of KITTI, 0 for fully visible, 1 for partly and 2 for largely occluded."""
        return int(self.occluded >= _PARTLY) + int(self.occluded >= _LARGELY)


@dataclass(frozen=True, kw_only=True)
class StreetFrame:
    """A frame of the street world.

    Args:
        image: Colours. Shape ``(H, W, 3)``, uint8.
        depth: True depth in metres, infinite for the sky. Shape ``(H, W)``, float32.
        measured: Measured depth, NaN where there is none. Shape ``(H, W)``, float32.
        sigma: Standard deviation of the measured depth, also where there is none. Shape ``(H, W)``, float32.
        facing: Cosine of the angle between a pixel's ray and the surface's normal. Shape ``(H, W)``, float32.
        is_edge: Whether a pixel lies next to an occlusion edge. Shape ``(H, W)``.
        instances: Number of the object of a pixel, 0 for none. Shape ``(H, W)``, int32.
        labels: Cityscapes' number of the class of a pixel. Shape ``(H, W)``, uint8.
        objects: Objects with at least one visible pixel, the nearest one first.
        focal: Focal length in pixels.
        drive: Name of the drive.
        number: Number of the frame in its drive.
    """

    image: NDArray[np.uint8]
    depth: NDArray[np.float32]
    measured: NDArray[np.float32]
    sigma: NDArray[np.float32]
    facing: NDArray[np.float32]
    is_edge: NDArray[np.bool_]
    instances: NDArray[np.int32]
    labels: NDArray[np.uint8]
    objects: tuple[StreetObject, ...]
    focal: float
    drive: str
    number: int


def drive_name(drive: int) -> str:
    """Name of a drive, as KITTI's are called.

    Example:
        >>> drive_name(0)
        '2011_09_26_drive_0001_sync'
    """
    return f"2011_09_26_drive_{drive + 1:04d}_sync"


def street_frame(config: StreetConfig, index: int) -> StreetFrame:
    """Render a frame.

    Args:
        config: The street world.
        index: Number of the frame among all frames.

    Raises:
        IndexError: There is no such frame.

    Example:
        >>> frame = street_frame(StreetConfig(frames=2, height=16, width=52), 1)
        >>> frame.image.shape, frame.drive
        ((16, 52, 3), '2011_09_26_drive_0001_sync')
    """
    rendered = _rendered(config, index, has_extents=True)
    scan = _scan(config, rendered)
    drive, sight = rendered.drive, rendered.sight
    is_object = np.array([bool(each.kind) for each in drive.table.things] + [False])  # -1 is the last
    instances = np.where(is_object[scan.thing], scan.thing + 1, 0).astype(np.int32)
    number, within = divmod(index, config.frames_per_drive)
    return StreetFrame(
        image=rendered.image,
        depth=scan.depth,
        measured=scan.measured,
        sigma=scan.sigma,
        facing=scan.facing,
        is_edge=scan.is_edge,
        instances=instances,
        labels=_labels(drive, rendered.camera, scan.surface, scan.depth),
        objects=_objects(config, drive, rendered.frames, sight.extents, instances),
        focal=config.focal,
        drive=drive_name(number),
        number=within,
    )


class DepthPicture(NamedTuple):
    """The part of a :class:`StreetFrame` that a depth network is trained on."""

    image: NDArray[np.uint8]
    measured: NDArray[np.float32]
    depth: NDArray[np.float32]
    sigma: NDArray[np.float32]


def depth_picture(config: StreetConfig, index: int) -> DepthPicture:
    """Image and depth of a frame, without its objects and classes, which cost time.

    Example:
        >>> config = StreetConfig(frames=1, height=16, width=52)
        >>> bool((depth_picture(config, 0).image == street_frame(config, 0).image).all())
        True
    """
    rendered = _rendered(config, index, has_extents=False)
    scan = _scan(config, rendered)
    return DepthPicture(rendered.image, scan.measured, scan.depth, scan.sigma)


class _Rendered(NamedTuple):
    """What a camera sees, and the random numbers of the lidar."""

    drive: Drive
    camera: Camera
    frames: ThingFrames
    sight: Sight
    shaded: Shaded
    image: NDArray[np.uint8]
    noise: list[NDArray[np.float64]]


def _rendered(config: StreetConfig, index: int, *, has_extents: bool) -> _Rendered:
    if isinstance(index, bool) or not isinstance(index, int):
        raise TypeError(f"expected `index` an int, got {type(index).__name__}")
    if not 0 <= index < config.frames:
        raise IndexError(f"expected `index` within {config.frames} frames, got {index}")
    number, within = divmod(index, config.frames_per_drive)
    drive = _drive(config.seed, number, config.frames_per_drive)
    pixels = config.height * config.width
    stream = config.seed + (_STREAMS["frame"] << 64)
    own, shot, *noise = np.split(
        uniforms(stream, index, index + 1, _PER_FRAME + 3 * pixels + 1)[0],
        np.cumsum([_PER_FRAME, pixels, pixels + 1]),
    )
    camera = _camera(config, drive, within, own)
    poses = drive.poses(within * FRAME_SECONDS)
    frames = ThingFrames(drive.table, poses, camera)
    sight = cast(drive.table, frames, camera, has_extents=has_extents)
    sun = drive.weather.sun
    is_sunny = max(drive.weather.sunlight) > 0
    is_ground = sight.surface == GROUND
    light = ground_light(drive.table, frames, poses, camera, sun, is_sunny=is_sunny, is_ground=is_ground)
    shaded = shade(drive, poses, camera, sight, light)
    image = _developed(shaded, camera, shot, exposure=0.9 + 0.2 * float(own[4]))
    return _Rendered(drive, camera, frames, sight, shaded, image, noise)


@lru_cache(maxsize=64)  # shuffled frames of a training set come from many drives
def _drive(seed: int, number: int, frames: int) -> Drive:
    return draw_drive(seed + (_STREAMS["drive"] << 64), number, frames)


def _camera(config: StreetConfig, drive: Drive, within: int, numbers: NDArray[np.float64]) -> Camera:
    """The camera of a frame, a little off its course."""
    along = np.array([drive.pace * FRAME_SECONDS * within])
    lateral = np.array([drive.lane + 0.4 * (numbers[0] - 0.5)])
    x, z, sine, cosine = (float(values[0]) for values in placed(drive.road, along, lateral))
    turn = 0.04 * (float(numbers[1]) - 0.5)
    straight = math.sqrt(1.0 - turn * turn)
    stride = 2 if config.antialiasing else 1
    middle = config.principal_point
    rays = [
        ((np.arange(stride * (size - 1) + 2 * stride - 1) - (stride - 1)) / stride - at) / config.focal
        for size, at in ((config.height, middle[1]), (config.width, middle[0]))
    ]
    return Camera(
        position=(x, _CAMERA_HEIGHT + 0.1 * (float(numbers[2]) - 0.5), z),
        heading=(sine * straight + cosine * turn, cosine * straight - sine * turn),
        pitch=0.024 * (float(numbers[3]) - 0.5),
        rows=rays[0],
        columns=rays[1],
        stride=stride,
    )


def _developed(shaded: Shaded, camera: Camera, shot: NDArray[np.float64], exposure: float) -> NDArray[np.uint8]:
    """Averages of rays as 8-bit colours, with a little noise."""
    colour = shaded.colour
    if camera.stride == 2:  # weights 1/4, 1/2, 1/4 in both directions
        colour = 0.5 * colour[:, 1:-1:2] + 0.25 * (colour[:, :-2:2] + colour[:, 2::2])
        colour = 0.5 * colour[:, :, 1:-1:2] + 0.25 * (colour[:, :, :-2:2] + colour[:, :, 2::2])
    levels = 255.0 * np.sqrt(np.clip(np.float32(exposure) * colour, 0.0, 1.0))
    levels += (5.0 * (shot.reshape(levels.shape[1:]) - 0.5)).astype(np.float32)
    return np.ascontiguousarray(np.clip(np.floor(levels + 0.5), 0.0, 255.0).astype(np.uint8).transpose(1, 2, 0))


class _Scan(NamedTuple):
    """What the lidar measures, and what it depends on. Shapes ``(H, W)``."""

    depth: NDArray[np.float32]
    sigma: NDArray[np.float32]
    measured: NDArray[np.float32]
    facing: NDArray[np.float32]
    is_edge: NDArray[np.bool_]
    surface: NDArray[np.int32]
    thing: NDArray[np.intp]


def _scan(config: StreetConfig, rendered: _Rendered) -> _Scan:
    camera, sight, noise = rendered.camera, rendered.sight, rendered.noise
    pixels = camera.middles, camera.middles
    surface, inverse = sight.surface[pixels], sight.inverse[pixels]
    facing = np.ascontiguousarray(rendered.shaded.facing[pixels])
    with np.errstate(divide="ignore"):
        depth = np.float32(1.0) / inverse
    thing = rendered.drive.table.thing[surface]
    is_edge = occlusion_edges(depth, np.where(surface == 0, -2, thing))
    sigma = lidar_sigma(config.lidar, depth, facing, is_edge)
    has_return = scanned(config.lidar, depth, sigma, noise[0])
    return _Scan(
        depth=depth,
        sigma=sigma,
        measured=measured(depth, sigma, has_return, noise[1]),
        facing=facing,
        is_edge=is_edge,
        surface=surface,
        thing=thing,
    )


def _labels(drive: Drive, camera: Camera, surface: NDArray[np.int32], depth: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Classes of pixels; the ground is road, pavement or grass."""
    numbers = np.array([LABELS[name] for name in drive.table.labels], np.uint8)
    labels = numbers[drive.table.label[surface]]
    ground = surface == GROUND
    right, _, ahead = (
        values[camera.middles, camera.middles] if values.shape[1] > 1 else values for values in camera.directions()
    )
    far = depth[ground]
    x = np.float32(camera.position[0]) + far * right[ground]
    z = np.float32(camera.position[2]) + far * ahead[ground]
    outside, _ = road_coordinates(drive.road, x, z)
    is_paved = (outside < drive.road.pavement) | (
        drive.road.paved & (outside >= drive.road.pavement + drive.road.verge)
    )
    sides = np.where(is_paved, LABELS["sidewalk"], LABELS["terrain"])
    labels[ground] = np.where(outside < 0, LABELS["road"], sides)
    return labels


def _objects(
    config: StreetConfig,
    drive: Drive,
    frames: ThingFrames,
    extents: dict[int, Extent],
    instances: NDArray[np.int32],
) -> tuple[StreetObject, ...]:
    found = []
    for thing, extent in extents.items():
        top, bottom, left, right = extent.box
        seen = instances[top:bottom, left:right] == thing + 1
        pixels = int(np.count_nonzero(seen))
        if not pixels:
            continue
        rows, columns = np.flatnonzero(seen.any(axis=1)), np.flatnonzero(seen.any(axis=0))
        origin, axes = frames.origin[thing], frames.axes[thing]
        location = -(origin[0] * axes[0] + origin[1] * axes[1] + origin[2] * axes[2])
        found.append(
            StreetObject(
                kind=drive.table.things[thing].kind,
                number=thing + 1,
                box=(left + int(columns[0]), top + int(rows[0]), left + int(columns[-1]) + 1, top + int(rows[-1]) + 1),
                full_box=(left, top, right, bottom),
                pixels=pixels,
                occluded=1.0 - pixels / extent.pixels,
                truncated=_truncated(config, location, axes, drive.table.things[thing].size),
                location=(float(location[0]), float(location[1]), float(location[2])),
                size=drive.table.things[thing].size,
                yaw=math.atan2(-axes[2, 2], axes[2, 0]),
            )
        )
    return tuple(sorted(found, key=lambda each: each.location[2]))


def _truncated(config: StreetConfig, location: NDArray[np.float64], axes: NDArray[np.float64], size: Vector) -> float:
    """Share of the rectangle around a projected 3-D box that lies outside of the image."""
    height, width, length = size
    chosen = np.array([[k & 1, k >> 1 & 1, k >> 2 & 1] for k in range(8)]) - np.array([0.5, 0.0, 0.5])
    scaled = chosen * np.array([width, height, length])
    corners = location + scaled[:, :1] * axes[0] + scaled[:, 1:2] * axes[1] + scaled[:, 2:] * axes[2]
    depth = np.maximum(corners[:, 2], 0.1)
    middle = config.principal_point
    edges = []
    for coordinate, limit in ((0, config.width), (1, config.height)):
        place = config.focal * corners[:, coordinate] / depth + middle[coordinate] + 0.5
        low, high = float(place.min()), float(place.max())
        edges.append((min(high, limit) - max(low, 0.0)) / (high - low))
    return min(max(1.0 - max(edges[0], 0.0) * max(edges[1], 0.0), 0.0), 1.0)
