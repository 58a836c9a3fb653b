"""Drawn rectangles on grey images, as a dataset of a detector: bright ones are class 1, dark ones class 2."""

import torch
from torch import Tensor
from torch.utils.data import Dataset

HEIGHT, WIDTH = 64, 96
SMALL = {
    "min_size": HEIGHT, "max_size": WIDTH, "width": 16, "head": 32, "proposals": 50, "rois": 32,
    "anchors": [8, 16, 24, 32, 48],
}  # fmt: skip


class Rectangles(Dataset):
    """Images with up to two rectangles, and some without any; corners of the targets have noise."""

    classes = ("bright", "dark")

    def __init__(self, count: int, seed: int, *, noise: float = 1.0, empty: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        made = [_drawn(generator, 0 if empty else (1 + number) % 3, noise) for number in range(count)]
        self.images, self.targets = [image for image, _ in made], [target for _, target in made]
        self.groups, self.names = list(range(count)), [f"{number:06d}" for number in range(count)]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"input": self.images[index], "target": self.targets[index]}

    def __getitems__(self, indices: list[int]) -> dict[str, list[object]]:
        return {"input": [self.images[i] for i in indices], "target": [self.targets[i] for i in indices]}


def _drawn(generator: torch.Generator, count: int, noise: float) -> tuple[Tensor, dict[str, Tensor]]:
    image = 0.5 + 0.02 * torch.randn(3, HEIGHT, WIDTH, generator=generator)
    corner = torch.rand(count, 2, generator=generator) * torch.tensor([WIDTH / 2, HEIGHT / 2])
    sides = 14 + 18 * torch.rand(count, 2, generator=generator)
    labels = torch.randint(1, 3, (count,), generator=generator)
    boxes = torch.cat([corner, corner + sides], 1).round()
    for (x1, y1, x2, y2), label in zip(boxes.int().tolist(), labels.tolist(), strict=True):
        image[:, y1:y2, x1:x2] = 1.0 if label == 1 else 0.0
    noisy = boxes + noise * torch.randn(boxes.shape, generator=generator)
    return image.clamp(0, 1), {"boxes": noisy, "labels": labels, "ignored": torch.zeros(count, dtype=torch.bool)}


class RectangleSplits:
    """Training, validation and test images, with the options of street scenes."""

    def __init__(
        self,
        *,
        train: int = 12,
        validation: int = 4,
        test: int = 4,
        frames_per_drive: int = 5,
        height: int = HEIGHT,
        width: int = WIDTH,
    ) -> None:
        assert frames_per_drive
        assert (height, width) == (HEIGHT, WIDTH)
        counts = (train, validation, test)
        self.train, self.validation, self.test = (Rectangles(n, seed) for seed, n in enumerate(counts))
