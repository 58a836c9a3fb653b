"""Settings of the depth benchmark, and its presets."""

from dataclasses import dataclass
from typing import Any

from fcal._checks import check_integer, check_number
from fcal._registry import Registry
from fcal.benchmarks.training_cells import Budget
from fcal.models.depth import encoder_names, family_names

STREET, MINI, KITTI = "street", "kitti-mini", "kitti"
WORLDS: Registry[str] = Registry("world")  # what tables call them
WORLDS.add(STREET, "rendered streets")
WORLDS.add(MINI, "real frames of KITTI")
WORLDS.add(KITTI, "KITTI's own tree")


@dataclass(frozen=True, kw_only=True)
class Settings(Budget):
    """Data and network of a depth benchmark, and its budget, as :class:`fcal.benchmarks.Budget` has it.

    Args:
        world: ``"street"``, rendered frames; ``"kitti-mini"``, the flat folders of real frames; ``"kitti"``, KITTI's
            own tree with Eigen's lists, or a street world that was written in the same layout.
        seeds: Number of seeds; each has initial weights and, of the street world, frames of its own.
        frames: Frames of the street world, of which three fifths are to train on, a fifth to choose by.
        frames_per_drive: Its frames of one drive, which are left out together.
        height: Height of frames in pixels.
        width: Width of frames in pixels.
        focal: Focal length in pixels that real frames are resized to; 0 for that of a plain resize.
        crop: Crop of real frames before that: ``"kb"``, or empty.
        density: Share of the pixels of the street world that are measured.
        train_list: File with the frames of KITTI to train on, in the folder of the data.
        test_list: File with the frames to test on.
        encoder: A network of torchvision, one of :func:`fcal.models.depth.encoder_names`.
        decoder: Channels of the decoder at 1/16 of the resolution.
        family: ``"normal"``, ``"laplace"`` or ``"log-normal"``.
        pretrained: Whether the encoder starts from the weights in the folder of the data, ``weights_mobilenetv2``.
    """

    world: str = STREET
    seeds: int = 1
    frames: int = 800
    frames_per_drive: int = 10
    height: int = 64
    width: int = 208
    focal: float = 0.0
    crop: str = ""
    density: float = 0.25
    train_list: str = "eigen_train_files_with_gt.txt"
    test_list: str = "eigen_test_files_with_gt.txt"
    encoder: str = "mobilenet_v2"
    decoder: int = 64
    family: str = "normal"
    pretrained: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        WORLDS[self.world]
        check_integer("seeds", self.seeds, at_least=1, at_most=1_000_000)
        for name, known in (("encoder", encoder_names()), ("family", family_names())):
            if getattr(self, name) not in known:
                shown = ", ".join(map(repr, known))
                raise ValueError(f"expected `{name}` one of {shown}, got {getattr(self, name)!r}")
        check_integer("decoder", self.decoder, at_least=1, at_most=4096)
        check_number("focal", self.focal, low=0.0, high=1e5)

    @property
    def network(self) -> dict[str, Any]:
        """Options of the network."""
        return {
            "encoder": self.encoder,
            "decoder": self.decoder,
            "family": self.family,
            "pretrained": self.pretrained,
        }

    def data(self, seed: int) -> dict[str, Any]:
        """Address of the frames of one seed."""
        view = {"world": self.world, "seed": seed, "height": self.height, "width": self.width}
        if self.world == STREET:
            return view | {name: getattr(self, name) for name in ("frames", "frames_per_drive", "density")}
        view |= {"focal": self.focal, "crop": self.crop}
        lists = {"train_list": self.train_list, "test_list": self.test_list} if self.world == KITTI else {}
        return view | lists


PRESETS = {
    "tiny": Settings(
        frames=24,
        frames_per_drive=2,
        height=32,
        width=64,
        encoder="resnet18",
        decoder=8,
        base_epochs=2,
        base_batch=4,
        tune_epochs=1,
        tune_batch=4,
        candidates=1,
        df=50,
    ),
    "quick": Settings(frames=200, frames_per_drive=5, base_epochs=8, base_batch=8, tune_batch=8, candidates=1),
    "street": Settings(seeds=3, base_batch=8, tune_batch=16),
    "kitti-mini": Settings(
        world=MINI, seeds=3, height=96, width=320, focal=186.0, pretrained=True, base_batch=8, tune_batch=8
    ),
    "paper": Settings(
        world=KITTI,
        height=352,
        width=1216,
        crop="kb",
        encoder="densenet161",
        decoder=512,
        pretrained=True,
        base_epochs=50,
        base_rate=1e-4,
        base_batch=16,
        tune_batch=16,
    ),
}
