"""Random images with detections near their objects."""

import torch

from fcal.metrics.detection import Detections, Truths

SIZE = (100, 200)


def random_boxes(count, generator, largest=60):
    """Boxes within the image, in float32."""
    height, width = SIZE
    sides = 20 + (largest - 20) * torch.rand(count, 2, generator=generator)
    start = torch.rand(count, 2, generator=generator) * (torch.tensor([width, height]) - sides)
    return torch.cat([start, start + sides], 1)


def random_image(generator, *, truths=5, copies=2, noise=3.0, classes=2, ignored=0.0, correlated=False, grid=None):
    """Objects, ``copies`` noisy detections of each and some that are nowhere; scores from a coarse grid if asked."""
    there = random_boxes(truths, generator)
    labels = torch.randint(1, classes + 1, (truths,), generator=generator)
    noisy = there.repeat(copies, 1) + noise * torch.randn(truths * copies, 4, generator=generator)
    boxes = torch.cat([noisy, random_boxes(2, generator)])
    guessed = torch.cat([labels.repeat(copies), torch.ones(2, dtype=torch.int64)])
    scores = torch.rand(len(boxes), generator=generator)
    if grid is not None:
        scores = (scores * grid).round() / grid
    root = torch.diag_embed(noise * (0.5 + torch.rand(len(boxes), 4, generator=generator)))
    if correlated:
        root = root + noise * 0.5 * torch.randn(len(boxes), 4, 4, generator=generator).tril(-1)
    detections = Detections(boxes=boxes, covariances=root @ root.mT, scores=scores, labels=guessed)
    skipped = torch.rand(truths, generator=generator) < ignored
    return detections, Truths(boxes=there, labels=labels, image_size=SIZE, ignored=skipped)


def random_images(count, seed=0, **options):
    """Lists of detections and of objects; the number of objects varies and may be 0."""
    generator = torch.Generator().manual_seed(seed)
    images = [random_image(generator, truths=number % 6, **options) for number in range(count)]
    return [image[0] for image in images], [image[1] for image in images]
