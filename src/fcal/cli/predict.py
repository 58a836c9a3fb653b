"""``fcal predict``."""

import os
import shlex
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from fcal._files import atomic_path, provenance, writable_folder
from fcal._progress import ProgressBar
from fcal.cli.commands import print_json, printable, say
from fcal.cli.plugins import load_plugin
from fcal.data.depth_frames import DEPTH_UNIT, FrameError, read_image
from fcal.data.street.layouts import png
from fcal.export import DepthMaps, DepthPredictor, as_16_bits, predicts_depth
from fcal.export.depth_prediction import LARGEST
from fcal.plots import PredictedDepth, depth_gallery
from fcal.training import Run, load
from fcal.training.config import ConfigError

_SUFFIXES = (".png", ".jpg", ".jpeg")
_ENDINGS = {"depth": "_depth.png", "sigma": "_sigma.png", "picture": ".png"}
_UNITS = {"depth": DEPTH_UNIT, "sigma": DEPTH_UNIT}  # a sigma of the sky may have many metres
_DOTS_PER_INCH = 110


def run(arguments: Namespace, words: list[str]) -> int:
    """Predict new inputs with the network of a finished run."""
    if not arguments.out:
        raise ValueError("expected `--out` the name of a folder, got ''")
    with redirect_stdout(sys.stderr):  # what plugins print; stdout is for the result
        for plugin in arguments.plugin:
            load_plugin(plugin)
        trained = _loaded(arguments)
    document = _writer_of(trained)(trained, arguments)
    if arguments.json:
        print_json({"command": f"fcal {shlex.join(words)}", "versions": provenance(), **document})
    return 0


def _loaded(arguments: Namespace) -> Run:
    try:
        return load(arguments.model)
    except ConfigError as error:  # checksums fit, so this is what was trained
        hint = "" if arguments.plugin else "; --plugin names the module or .py file that registered it for the training"
        raise ValueError(f"{arguments.model}: {error}{hint}") from error


def _writer_of(trained: Run) -> Callable[[Run, Namespace], dict[str, Any]]:
    """What predicts with the network of a run, by its kind."""
    if predicts_depth(trained):
        return _predict_depth
    network = f"the network {trained.config.model.name!r} trained on {trained.config.data.name!r}"
    raise ValueError(f"expected {trained.folder} the run of a depth network, the only kind so far, got {network}")


def _predict_depth(trained: Run, arguments: Namespace) -> dict[str, Any]:
    """Depth and sigma of images: two PNGs of 16 bits and a picture each."""
    images = _images(arguments.inputs)
    outputs = _outputs(images, Path(arguments.out), overwrite=arguments.overwrite)
    predictor = DepthPredictor.of_run(trained)
    writable_folder(arguments.out)
    written = []
    with ProgressBar("predicting", total=len(images), unit="images", show=not arguments.json) as bar:
        for image, files in zip(images, outputs, strict=True):
            written.append(_predict_image(predictor, image, files, arguments.focal))
            bar.advance()
    if not arguments.json:
        _print_images(written)
        say(f"{len(written)} image(s): depth and sigma (metres x 256) and pictures in {arguments.out}")
    method = trained.config.recalibration.method or None
    return {"run": str(trained.folder), "recalibration": method, "out": arguments.out, "images": written}


def _images(inputs: Sequence[str]) -> list[Path]:
    """Image files, and those in folders."""
    images: list[Path] = []
    for path in map(Path, inputs):
        if not path.exists():
            raise ValueError(f"expected an image or a folder of images, got no file {path}")
        inside = (
            sorted(each for each in path.iterdir() if each.suffix.lower() in _SUFFIXES) if path.is_dir() else [path]
        )
        if not inside:
            raise ValueError(f"expected {path} with images ({', '.join(_SUFFIXES)}), got none")
        images += inside
    return images


def _outputs(images: Sequence[Path], folder: Path, *, overwrite: bool) -> list[dict[str, Path]]:
    """Files to write for each image; two that would share a file, and files that exist, are refused."""
    outputs = [{name: folder / f"{stem}{end}" for name, end in _ENDINGS.items()} for stem in output_stems(images)]
    sources = {image.resolve() for image in images}
    users: dict[Path, Path] = {}
    for image, files in zip(images, outputs, strict=True):
        for path in files.values():
            if path in users:
                raise ValueError(f"expected images with files of their own, got {users[path]} and {image} for {path}")
            users[path] = image
            if path.resolve() in sources:
                raise ValueError(f"expected `--out` another folder than that of the images, got {folder} with {path}")
    existing = [path for path in users if path.exists()]
    if existing and not overwrite:
        raise ValueError(
            f"expected `--out` without earlier results, or --overwrite, got {existing[0]} ({len(existing)} files)"
        )
    return outputs


def output_stems(images: Sequence[Path]) -> list[str]:
    """Name of each image without its suffix; of equal names, with as many folders before it as tell them apart.

    Example:
        >>> output_stems([Path("/a/left/5.png"), Path("/a/right/5.png"), Path("/a/left/6.png")])
        ['left_5', 'right_5', '6']
    """
    paths = [Path(os.path.abspath(image)).with_suffix("") for image in images]  # noqa: PTH100 - links keep their names
    stems = [path.stem for path in images]
    for depth in range(2, max((len(path.parts) for path in paths), default=0)):
        shared = Counter(stems)
        stems = [
            "_".join(path.parts[-depth:]) if shared[stem] > 1 else stem for path, stem in zip(paths, stems, strict=True)
        ]
    return stems


def _predict_image(
    predictor: DepthPredictor, image: Path, files: dict[str, Path], focal: float | None
) -> dict[str, Any]:
    """Predict one image, and write its files."""
    pixels = read_image(image)
    try:
        maps = predictor(pixels, focal=focal)
    except ValueError as error:
        raise FrameError(image, f"{image}: {error}") from error
    saturated = {}
    for name, unit in _UNITS.items():
        whole, saturated[name] = as_16_bits(getattr(maps, name), unit)
        with atomic_path(files[name]) as temporary:
            temporary.write_bytes(png(whole))
    figure = depth_gallery([PredictedDepth(image=pixels, depth=maps.depth, sigma=maps.sigma, title=image.name)])
    with atomic_path(files["picture"]) as temporary:
        figure.savefig(temporary, dpi=_DOTS_PER_INCH, metadata={"Software": None})
    paths = {name: str(path) for name, path in files.items()}
    return {"image": str(image), **paths, **_summary(maps), "saturated": saturated}


def _summary(maps: DepthMaps) -> dict[str, Any]:
    """Sizes, and medians of the pixels that were predicted."""
    seen = np.isfinite(maps.depth) & np.isfinite(maps.sigma)
    medians = {
        f"median_{name}": round(float(np.median(getattr(maps, name)[seen])), 4) if seen.any() else None
        for name in _UNITS
    }
    height, width = maps.depth.shape
    sizes = {"size": [height, width], "network_size": list(maps.network_size)}
    return {**sizes, "pixels": int(np.count_nonzero(seen)), **medians}


def _print_images(written: Sequence[dict[str, Any]]) -> None:
    for entry in written:
        depth, sigma = (_metres(entry[f"median_{name}"]) for name in _UNITS)
        print(printable(f"{entry['image']}: median depth {depth}, median sigma {sigma}; picture: {entry['picture']}"))
    for name, unit in _UNITS.items():
        count = sum(entry["saturated"][name] for entry in written)
        if count:
            share = f"{count:,} of {sum(entry['pixels'] for entry in written):,} pixels"
            limit = f"{LARGEST / unit:.2f} m, the largest number in its file"
            say(f"fcal: warning: {name} is cut off at {limit}, for {share}")


def _metres(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g} m"
