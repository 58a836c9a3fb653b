"""What stands in a street, built of solids: cars, people, houses, trees, lamps, signs, hedges."""

from collections.abc import Sequence
from typing import TypeVar

from fcal.data.bokeh import uniforms
from fcal.data.street.solids import BLACK, Colour, Look, Material, Polyhedron, Quadric, Solid, Thing, Vector, box, cut

Choice = TypeVar("Choice")

_DRAWS = 8192  # of one drive; far more than a street needs

_PAINTS: tuple[Colour, ...] = (
    (0.62, 0.62, 0.62),
    (0.72, 0.72, 0.70),
    (0.30, 0.31, 0.33),
    (0.05, 0.05, 0.06),
    (0.02, 0.02, 0.02),
    (0.03, 0.06, 0.20),
    (0.06, 0.14, 0.34),
    (0.38, 0.02, 0.02),
    (0.20, 0.02, 0.03),
    (0.03, 0.12, 0.07),
    (0.42, 0.36, 0.24),
    (0.55, 0.24, 0.04),
)
_WALLS: tuple[Colour, ...] = (
    (0.62, 0.56, 0.44),
    (0.70, 0.66, 0.58),
    (0.56, 0.44, 0.28),
    (0.42, 0.20, 0.13),
    (0.34, 0.15, 0.10),
    (0.50, 0.50, 0.48),
    (0.60, 0.42, 0.30),
    (0.44, 0.48, 0.50),
    (0.66, 0.58, 0.36),
    (0.52, 0.58, 0.50),
)
_ROOFS: tuple[Colour, ...] = ((0.26, 0.09, 0.05), (0.20, 0.07, 0.05), (0.10, 0.10, 0.11), (0.16, 0.12, 0.10))
_CLOTHES: tuple[Colour, ...] = (
    (0.03, 0.03, 0.04),
    (0.05, 0.07, 0.16),
    (0.45, 0.05, 0.05),
    (0.55, 0.55, 0.52),
    (0.08, 0.16, 0.10),
    (0.50, 0.38, 0.10),
    (0.16, 0.10, 0.06),
    (0.10, 0.25, 0.42),
)
_SKINS: tuple[Colour, ...] = ((0.55, 0.36, 0.26), (0.40, 0.24, 0.16), (0.22, 0.12, 0.08))
_LEAVES: tuple[Colour, ...] = ((0.09, 0.17, 0.04), (0.12, 0.20, 0.05), (0.07, 0.13, 0.05), (0.20, 0.19, 0.05))
_SIGNS: tuple[Colour, ...] = ((0.55, 0.02, 0.02), (0.03, 0.10, 0.50), (0.70, 0.55, 0.04), (0.75, 0.75, 0.75))
_TYRE, _METAL, _GLASS = (0.015, 0.015, 0.016), (0.22, 0.23, 0.23), (0.035, 0.045, 0.055)
_TRUNK, _STONE = (0.12, 0.08, 0.05), (0.36, 0.34, 0.30)


class Draws:
    """Random choices in a fixed order, the same on every machine.

    Args:
        seed: Seed of the stream.
        item: Number of the item, such as a drive; items have independent numbers.

    Example:
        >>> Draws(1, 0).number(0.0, 1.0) == Draws(1, 0).number(0.0, 1.0)
        True
    """

    def __init__(self, seed: int, item: int) -> None:
        self._numbers = iter(uniforms(seed, item, item + 1, width=_DRAWS)[0].tolist())

    def number(self, low: float, high: float) -> float:
        """A uniform number."""
        return low + (high - low) * next(self._numbers)

    def integer(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included."""
        return low + int((high - low + 1) * next(self._numbers))

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return next(self._numbers) < probability

    def one_of(self, choices: Sequence[Choice]) -> Choice:
        """One of several choices."""
        return choices[int(len(choices) * next(self._numbers))]


def _shade(colour: Colour, factor: float) -> Colour:
    return colour[0] * factor, colour[1] * factor, colour[2] * factor


def car(draws: Draws) -> Thing:
    """A car: hatchback, saloon or estate."""
    length, width, height = draws.number(3.6, 4.8), draws.number(1.65, 1.85), draws.number(1.40, 1.62)
    paint = draws.one_of(_PAINTS)
    rear = draws.one_of((-0.48, -0.47, -0.36))  # where the cabin ends, as a share of the length
    belt = 0.60 * height
    solids: tuple[Solid, ...] = (
        _car_body(length, width, belt, paint),
        _car_cabin((rear * length, 0.24 * length), width, (belt - 0.04, height), paint),
        *_wheels(length, width),
    )
    low, high = (-width / 2, 0.0, -length / 2), (width / 2, height, length / 2)
    return Thing(solids, "Car", (height, width, length), ((low, high),))


def _car_body(length: float, width: float, belt: float, paint: Colour) -> Polyhedron:
    side = Look("car", paint, Material.CAR_SIDE)
    front, back = Look("car", paint, Material.CAR_FRONT), Look("car", paint, Material.CAR_REAR)
    plain = Look("car", paint)
    body = box((-width / 2, 0.2, -length / 2), (width / 2, belt, length / 2), side, front=front, back=back)
    body = cut(body, (0, belt, 0.22 * length), (0, 0.28 * length, 0.22), plain)  # bonnet
    body = cut(body, (0, belt - 0.1, -0.5 * length), (0, 0.5, -0.25), back)  # boot lid
    for sign in (1, -1):  # shoulders
        body = cut(body, (sign * (width / 2 - 0.05), belt, 0), (sign * 0.6, 0.35, 0), plain)
        body = cut(body, (sign * 0.36 * width, 0, length / 2), (sign * 0.3, 0, 0.6), front)
    return body


def _car_cabin(ends: tuple[float, float], width: float, heights: tuple[float, float], paint: Colour) -> Polyhedron:
    (back, front), (low, high) = ends, heights
    rise, glass = high - low, Look("car", _GLASS, Material.CAR_GLASS, accent=paint)
    cabin = box((-width / 2 + 0.05, low, back), (width / 2 - 0.05, high, front), Look("car", paint))
    cabin = cut(cabin, (0, low, front), (0, 0.6, rise), glass)  # windscreen
    cabin = cut(cabin, (0, low, back), (0, 0.22, -rise), glass)
    for sign in (1, -1):
        cabin = cut(cabin, (sign * (width / 2 - 0.05), low, 0), (sign * rise, 0.16, 0), glass)
    return cabin


def _wheels(length: float, width: float, radius: float = 0.32) -> tuple[Quadric, ...]:
    tyre = Look("car", _TYRE, Material.WHEEL, accent=_METAL)
    centres = [(sign * (width / 2 - 0.09), end * 0.31 * length) for sign in (1, -1) for end in (1, -1)]
    return tuple(Quadric((x, radius, z), (0.12, radius, radius), tyre) for x, z in centres)


def van(draws: Draws) -> Thing:
    """A van: one tall body with a sloping front."""
    length, width, height = draws.number(4.6, 5.6), draws.number(1.85, 2.0), draws.number(1.9, 2.4)
    paint = draws.one_of(_PAINTS[:3])
    look, glass = Look("car", paint, Material.CAR_SIDE), Look("car", _GLASS, Material.CAR_GLASS, accent=paint)
    front, back = Look("car", paint, Material.CAR_FRONT), Look("car", paint, Material.CAR_REAR)
    body = box((-width / 2, 0.25, -length / 2), (width / 2, height, length / 2), look, front=front, back=back)
    body = cut(body, (0, 1.1, length / 2), (0, 0.75, 1.0), glass)
    window = box(
        (-width / 2 - 0.01, 0.6 * height, 0.12 * length), (width / 2 + 0.01, 0.85 * height, 0.28 * length), glass
    )
    rear = box(
        (-0.4 * width, 0.6 * height, -length / 2 - 0.01), (0.4 * width, 0.85 * height, -length / 2), Look("car", _GLASS)
    )
    low, high = (-width / 2, 0.0, -length / 2), (width / 2, height, length / 2)
    return Thing((body, window, rear, *_wheels(length, width)), "Van", (height, width, length), ((low, high),))


def lorry(draws: Draws) -> Thing:
    """A lorry: a cab and a box body."""
    length, width, height = draws.number(7.0, 9.5), 2.45, draws.number(3.0, 3.6)
    cab, cargo = Look("truck", draws.one_of(_PAINTS)), Look("truck", draws.one_of(_PAINTS[:2]))
    glass, rear = Look("truck", _GLASS), Look("truck", (0.5, 0.5, 0.48))
    split = length / 2 - 1.9
    solids: tuple[Solid, ...] = (
        box((-width / 2, 0.9, -length / 2), (width / 2, height, split - 0.1), cargo, back=rear),
        box((-width / 2, 0.4, split), (width / 2, 0.85 * height, length / 2), cab),
        box((-width / 2 + 0.1, 1.5, split), (width / 2 - 0.1, 2.3, length / 2 + 0.02), glass),
        box((-width / 2 + 0.2, 0.45, -length / 2 + 0.2), (width / 2 - 0.2, 0.9, split), Look("truck", _TYRE)),
        *(
            Quadric((sign * (width / 2 - 0.16), 0.48, z), (0.16, 0.48, 0.48), Look("truck", _TYRE))
            for sign in (1, -1)
            for z in (0.36 * length, -0.32 * length)
        ),
    )
    low, high = (-width / 2, 0.0, -length / 2), (width / 2, height, length / 2)
    return Thing(solids, "Truck", (height, width, length), ((low, high),))


def pedestrian(draws: Draws) -> Thing:
    """A person who stands or walks."""
    height, stride = draws.number(1.5, 1.9), draws.number(0.0, 0.22)
    legs = Look("person", draws.one_of(_CLOTHES))
    limbs = tuple(
        Quadric((0.09 * sign, 0.26 * height, sign * stride), (0.085, 0.27 * height, 0.11), legs) for sign in (1, -1)
    )
    solids = (*_upper_body(draws, "person", height, lean=0.0), *limbs)
    size = (height, 0.6, 0.4 + stride)
    low, high = (-0.24, 0.0, -0.16), (0.24, height, 0.16)
    return Thing(solids, "Pedestrian", size, ((low, high),))


def _upper_body(draws: Draws, label: str, height: float, lean: float) -> tuple[Quadric, ...]:
    """Torso, arms and head; ``lean`` is how far the head is in front of the hips."""
    shirt, skin = Look(label, draws.one_of(_CLOTHES)), Look(label, draws.one_of(_SKINS))
    hair = Look(label, draws.one_of(((0.02, 0.015, 0.01), (0.12, 0.07, 0.03), (0.30, 0.28, 0.25))))
    arms = tuple(
        Quadric((0.25 * sign, 0.63 * height, 0.5 * lean), (0.065, 0.19 * height, 0.08), shirt) for sign in (1, -1)
    )
    head = Quadric((0, 0.92 * height, lean), (0.095, 0.075 * height, 0.11), skin)
    top = Quadric((0, 0.935 * height, lean - 0.02), (0.10, 0.068 * height, 0.105), hair)
    return (Quadric((0, 0.66 * height, 0.4 * lean), (0.21, 0.2 * height, 0.14 + 0.2 * lean), shirt), *arms, head, top)


def cyclist(draws: Draws) -> Thing:
    """A person on a bicycle."""
    height = draws.number(1.65, 1.85)
    frame = Look("bicycle", draws.one_of(_PAINTS))
    legs = Look("rider", draws.one_of(_CLOTHES))
    wheels = tuple(
        Quadric((0, 0.34, z), (0.03, 0.34, 0.34), Look("bicycle", (0.05, 0.05, 0.05))) for z in (0.52, -0.52)
    )
    bars = box((-0.02, 0.5, -0.4), (0.02, 0.62, 0.4), frame), box((-0.25, 0.95, 0.38), (0.25, 1.0, 0.43), frame)
    limbs = tuple(Quadric((0.1 * sign, 0.62, 0.06 + 0.08 * sign), (0.08, 0.36, 0.12), legs) for sign in (1, -1))
    solids: tuple[Solid, ...] = (*wheels, *bars, *limbs, *_upper_body(draws, "rider", height, lean=0.2))
    low, high = (-0.2, 0.2, -0.6), (0.2, height, 0.6)
    return Thing(solids, "Cyclist", (height, 0.6, 1.75), ((low, high),))


def house(draws: Draws, width: float, floors: int, *, flat: bool) -> Thing:
    """A house whose front, at z = 0, looks along z; ``flat`` for a roof without ridge."""
    storey, columns = draws.number(2.8, 3.3), 2 * int(width / draws.number(4.6, 6.4)) + 1
    period = width / columns  # windows fit between the corners, on the sides as well
    depth = period * int(draws.number(8.0, 12.0) / period)
    eaves, ridge = storey * floors + 0.4, 0.0 if flat else draws.number(2.0, 4.0)
    windows = (storey, period, draws.number(0.0, 1.0))
    wall = Look("building", draws.one_of(_WALLS), Material.FACADE, accent=windows)
    roof = Look("building", draws.one_of(_ROOFS), Material.ROOF)
    solid = box((-width / 2, 0.0, -depth), (width / 2, eaves + ridge, 0.0), wall)
    if not flat:
        solid = cut(solid, (0, eaves, 0), (0, depth / 2, ridge), roof)
        solid = cut(solid, (0, eaves, -depth), (0, depth / 2, -ridge), roof)
    extras = [
        box(
            (-width / 2 - 0.1, eaves - 0.25, -depth),
            (width / 2 + 0.1, eaves, 0.25),
            Look("building", (0.4, 0.38, 0.36)),
        )
    ]
    if not flat:
        x = draws.number(-0.3, 0.3) * width
        chimney = Look("building", (0.26, 0.12, 0.09))
        extras.append(
            box((x - 0.35, eaves, -depth / 2 - 0.35), (x + 0.35, eaves + ridge + 0.9, -depth / 2 + 0.35), chimney)
        )
    return Thing((solid, *extras), casts=(((-width / 2, 0.0, -depth), (width / 2, eaves + 0.5 * ridge, 0.0)),))


def tree(draws: Draws) -> Thing:
    """A broad-leaved tree."""
    trunk, girth = draws.number(2.0, 3.4), draws.number(0.12, 0.26)
    spread, leaves = draws.number(1.3, 2.4), draws.one_of(_LEAVES)
    crown = []
    for _ in range(draws.integer(4, 6)):
        x, z = draws.number(-0.6, 0.6) * spread, draws.number(-0.6, 0.6) * spread
        y, radius = trunk + draws.number(0.2, 1.6) * spread, draws.number(0.55, 0.95) * spread
        look = Look("vegetation", _shade(leaves, draws.number(0.8, 1.2)), Material.LEAVES)
        crown.append(Quadric((x, y, z), (radius, 0.8 * radius, radius), look))
    stem = Quadric(
        (0, trunk / 2 + 0.3, 0), (girth, trunk / 2 + 0.3, girth), Look("vegetation", _TRUNK), is_cylinder=True
    )
    shade: tuple[Vector, Vector] = ((-spread, trunk, -spread), (spread, trunk + 1.6 * spread, spread))
    return Thing((stem, *crown), casts=(((-girth, 0.0, -girth), (girth, trunk, girth)), shade))


def lamp(draws: Draws) -> Thing:
    """A street lamp whose arm points along z."""
    height = draws.number(5.0, 8.0)
    metal = Look("pole", _METAL if draws.chance(0.6) else (0.05, 0.08, 0.07))
    pole = Quadric((0, height / 2, 0), (0.075, height / 2, 0.075), metal, is_cylinder=True)
    arm = box((-0.04, height - 0.12, -0.05), (0.04, height - 0.04, 1.6), metal)
    head = box((-0.14, height - 0.2, 1.2), (0.14, height - 0.02, 1.9), Look("pole", (0.5, 0.5, 0.48)))
    return Thing((pole, arm, head), casts=(((-0.08, 0.0, -0.08), (0.08, height, 0.08)),))


def sign(draws: Draws) -> Thing:
    """A traffic sign that faces along -z, to who drives towards +z."""
    height, half = draws.number(2.1, 2.6), draws.number(0.28, 0.4)
    colour = draws.one_of(_SIGNS)
    pole = Quadric((0, height / 2, 0), (0.035, height / 2, 0.035), Look("pole", _METAL), is_cylinder=True)
    back, face = Look("traffic sign", _METAL), Look("traffic sign", colour)
    inner = Look("traffic sign", (0.75, 0.75, 0.75) if max(colour) < 0.7 else BLACK)
    plate = box((-half, height - half, -0.06), (half, height + half, -0.04), back, back=face)
    middle = box((-0.55 * half, height - 0.3 * half, -0.07), (0.55 * half, height + 0.3 * half, -0.06), inner)
    return Thing((pole, plate, middle), casts=(((-half, height - half, -0.05), (half, height + half, 0.05)),))


def hedge(draws: Draws, length: float) -> Thing:
    """A hedge, a low wall or a fence along x."""
    kind = draws.one_of(("hedge", "hedge", "wall", "fence"))
    height = {"hedge": draws.number(0.8, 1.8), "wall": draws.number(0.6, 1.2), "fence": draws.number(0.9, 1.3)}[kind]
    thick = 0.35 if kind == "hedge" else 0.1
    look = {
        "hedge": Look("vegetation", draws.one_of(_LEAVES), Material.LEAVES),
        "wall": Look("wall", _STONE),
        "fence": Look("fence", draws.one_of(((0.30, 0.19, 0.10), (0.55, 0.55, 0.52)))),
    }[kind]
    low, high = (-length / 2, 0.0, -thick), (length / 2, height, thick)
    return Thing((box(low, high, look),), casts=((low, high),))
