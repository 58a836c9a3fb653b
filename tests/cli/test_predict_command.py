"""``fcal predict`` as users type it, and the page that shows it."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from depth_files import noise_image, write_image
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from fcal import models, recalibration
from fcal.cli import main
from fcal.cli.predict import output_stems
from fcal.data import StreetConfig, StreetDepth
from fcal.data.street import street_frame
from fcal.training import load

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/depth.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line)[1:] for line in re.search("```shell\n(.*?)```", PAGE, re.DOTALL)[1].splitlines()]
STREET = StreetConfig(frames=15, frames_per_drive=1, height=32, width=104)
SMALL = [
    *("--set", "data.options.frames=15", "--set", "data.options.frames_per_drive=1"),
    *("--set", "data.options.height=32", "--set", "data.options.width=104"),
    *("--set", "model.options.encoder=resnet18", "--set", "model.options.width=8", "--set", "fit.epochs=1"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A folder in which the commands of the page were run, with a smaller network and smaller frames."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "docs").symlink_to(ROOT / "docs")
    more = {"data": ["--height", "32", "--width", "104"], "train": SMALL, "predict": []}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in COMMANDS:
            assert main([*command, *more[command[0]]]) == 0
    return folder


@pytest.fixture(scope="module")
def trained(page):
    return page / "runs/depth-example"


@pytest.fixture
def image(tmp_path):
    """A frame at twice the size of the network."""
    pixels = street_frame(STREET, 14).image
    return write_image(tmp_path / "in/frame.png", pixels.repeat(2, axis=0).repeat(2, axis=1))


def predicted(trained, *words):
    return main(["predict", str(trained), *map(str, words)])


def stored(path):
    with Image.open(path) as opened:
        assert opened.mode == "I;16"
        return np.array(opened)


def test_commands_of_the_page_write_what_it_says(page):
    assert [command[0] for command in COMMANDS] == ["data", "train", "predict"]
    names = sorted(path.name for path in (page / "predictions").iterdir())
    assert names == ["0000000005.png", "0000000005_depth.png", "0000000005_sigma.png"]
    report = json.loads((page / "runs/depth-example/report.json").read_text())
    assert report["before"]["n"] == report["test"]["n"] > 100


def test_script_of_the_page_reads_what_was_written(page, monkeypatch, capsys):
    (script,) = re.findall("```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(page)
    exec(compile(script, "docs/depth.md", "exec"), {})
    assert capsys.readouterr().out == "True\n"


def test_files_hold_mean_and_sigma_of_the_network_after_its_repair(trained, tmp_path):
    """At the size of the network, where pixels are cells."""
    write_image(tmp_path / "frame.png", street_frame(STREET, 14).image)
    assert predicted(trained, tmp_path / "frame.png", "--out", tmp_path / "out") == 0
    run = load(trained)
    with torch.no_grad():
        pred = run.model(StreetDepth(STREET)[14]["input"][None])
    factor = recalibration.load(trained / "recalibrator").numbers()["factor"]
    assert_allclose(stored(tmp_path / "out/frame_depth.png") / 256, pred.mean[0], atol=0.5 / 256 + 1e-4)
    sigma = np.minimum(factor * pred.stddev[0].numpy(), 65535 / 256)
    assert_allclose(stored(tmp_path / "out/frame_sigma.png") / 256, sigma, atol=0.5 / 256 + 1e-4)


def test_maps_have_the_size_of_the_image(trained, image, tmp_path, capsys):
    assert predicted(trained, image, "--out", tmp_path / "out") == 0
    depth = stored(tmp_path / "out/frame_depth.png")
    assert depth.shape == stored(tmp_path / "out/frame_sigma.png").shape == (64, 208)
    assert_array_equal(depth, depth[::2, ::2].repeat(2, axis=0).repeat(2, axis=1))  # the prediction of 32 x 104 cells
    with Image.open(tmp_path / "out/frame.png") as picture:
        assert min(picture.size) > 400
    out = capsys.readouterr()
    assert out.out.startswith(f"{image}: median depth ")
    assert out.err.splitlines()[-1].startswith("1 image(s): depth and sigma (metres x 256) and pictures in ")


def test_json_is_one_document_with_medians(trained, image, tmp_path, capsys):
    assert predicted(trained, image, "--out", tmp_path / "out", "--json") == 0
    out = capsys.readouterr()
    document = json.loads(out.out)
    assert out.err == ""
    assert document["recalibration"] == "temperature"
    (entry,) = document["images"]
    assert entry["image"] == str(image)
    assert (entry["size"], entry["network_size"], entry["pixels"]) == ([64, 208], [32, 104], 64 * 208)
    assert entry["median_depth"] == pytest.approx(np.median(stored(entry["depth"])) / 256, abs=0.5 / 256)
    assert entry["median_sigma"] == pytest.approx(min(np.median(stored(entry["sigma"])) / 256, 256), abs=0.5 / 256)
    assert entry["saturated"]["sigma"] == np.count_nonzero(stored(entry["sigma"]) == 65535)


def test_values_that_16_bits_cannot_hold_are_counted_and_said(trained, image, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fcal.cli.predict._UNITS", {"depth": 256.0, "sigma": 2.0**20})
    assert predicted(trained, image, "--out", tmp_path / "out") == 0
    warning = "fcal: warning: sigma is cut off at 0.06 m, the largest number in its file, for 13,312 of 13,312 pixels"
    assert warning in capsys.readouterr().err.splitlines()


def test_focal_length_leaves_pixels_outside_without_depth(trained, image, tmp_path):
    """An image of half the focal length of training frames is shown at twice its size, 128 x 416."""
    focal = 721.5377 * 104 / 1242 / 2
    assert predicted(trained, image, "--focal", focal, "--out", tmp_path / "out") == 0
    seen = stored(tmp_path / "out/frame_depth.png") > 0
    expected = np.zeros((64, 208), bool)
    expected[48:, 78:130] = True  # the bottom centre: 32 of 128 rows, 104 of 416 columns
    assert_array_equal(seen, expected)


def test_images_of_one_name_are_told_apart_by_their_folders(trained, tmp_path):
    for drive in ("left", "right"):
        write_image(tmp_path / drive / "data" / "5.png", noise_image((16, 24)))
    assert predicted(trained, tmp_path / "left/data", tmp_path / "right/data/5.png", "--out", tmp_path / "out") == 0
    stems = {path.name.removesuffix("_depth.png") for path in (tmp_path / "out").glob("*_depth.png")}
    assert stems == {"left_data_5", "right_data_5"}


def test_names_have_as_many_folders_as_tell_them_apart():
    images = [Path(name) for name in ("/a/x/0.png", "/b/x/0.png", "/b/y/0.png", "/b/y/1.v2.png", "/c/0.jpg")]
    assert output_stems(images) == ["a_x_0", "b_x_0", "y_0", "1.v2", "c_0"]


def test_earlier_results_are_replaced_only_on_request(trained, image, tmp_path, capsys):
    assert predicted(trained, image, "--out", tmp_path / "out") == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    capsys.readouterr()
    assert predicted(trained, image, "--out", tmp_path / "out") == 2
    expected = f"fcal: expected `--out` without earlier results, or --overwrite, got {tmp_path / 'out/frame_depth.png'}"
    assert capsys.readouterr().err == f"{expected} (3 files)\n"
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before
    assert predicted(trained, image, "--out", tmp_path / "out", "--overwrite") == 0
    assert all(path.stat().st_mtime_ns > time for path, time in before.items())


def refusal(trained, capsys, *words):
    """The line of a refused command."""
    capsys.readouterr()
    assert predicted(trained, *words) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.count("\n") == 1
    return out.err.strip()


def test_image_is_never_overwritten_by_its_picture(trained, image, capsys):
    before = image.read_bytes()
    line = refusal(trained, capsys, image, "--out", image.parent, "--overwrite")
    assert "expected `--out` another folder than that of the images" in line
    assert image.read_bytes() == before


@pytest.mark.parametrize("other", ["frame.jpg", "frame_depth.png"])
def test_images_that_would_share_a_file_are_refused(trained, image, tmp_path, capsys, other):
    write_image(image.parent / other, noise_image((16, 24)))
    line = refusal(trained, capsys, image, image.parent / other, "--out", tmp_path / "out")
    assert line.startswith("fcal: expected images with files of their own, got ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "expected an image or a folder of images, got no file .*bad.png"),
        (b"", "expected .*bad.png an image file that can be read, got: "),
        (b"no image", "expected .*bad.png an image file that can be read, got: "),
        ("truncated", "expected .*bad.png an image file that can be read, got: "),
        ("deep", "expected .*bad.png an image of 8 bits, got mode I;16"),
    ],
)
def test_bad_image_is_one_line_and_exit_code_2(trained, image, tmp_path, capsys, content, message):
    bad = tmp_path / "bad.png"
    if content == "truncated":
        bad.write_bytes(image.read_bytes()[:200])
    elif content == "deep":
        write_image(bad, np.ones((16, 24), np.uint16))
    elif content is not None:
        bad.write_bytes(content)
    assert re.search(message, refusal(trained, capsys, bad, "--out", tmp_path / "out"))
    assert not list((tmp_path / "out").glob("*"))


def test_folder_without_images_is_refused(trained, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    line = refusal(trained, capsys, tmp_path / "empty", "--out", tmp_path / "out")
    assert line == f"fcal: expected {tmp_path / 'empty'} with images (.png, .jpg, .jpeg), got none"


def test_out_must_be_a_folder(trained, image, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert "expected a folder, got the file" in refusal(trained, capsys, image, "--out", tmp_path / "file")
    assert refusal(trained, capsys, image, "--out", "") == "fcal: expected `--out` the name of a folder, got ''"


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("weights.safetensors", "with the checksum in SHA256SUMS, got another: the file is damaged"),
        ("SHA256SUMS", "a finished run, got one without readable SHA256SUMS"),
        ("recalibrator", "got no such file"),
    ],
)
def test_damaged_run_is_refused(trained, image, tmp_path, capsys, file, message):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    if file == "recalibrator":
        shutil.rmtree(run / file)
    elif file == "SHA256SUMS":
        (run / file).unlink()
    else:
        content = bytearray((run / file).read_bytes())
        content[-1] ^= 1
        (run / file).write_bytes(content)
    assert message in refusal(run, capsys, image, "--out", tmp_path / "out")


def test_run_that_is_not_of_a_depth_network_is_refused(image, tmp_path, capsys):
    config = tmp_path / "discs.toml"
    config.write_text(
        '[data]\nname = "bokeh"\noptions = {images = 20, extra = 0, radius = 0.2, size = 16}\n'
        '[model]\nname = "convnet"\noptions = {size = 16}\n[fit]\nepochs = 1\n'
    )
    assert main(["train", str(config), "--out", str(tmp_path / "run")]) == 0
    line = refusal(tmp_path / "run", capsys, image, "--out", tmp_path / "out")
    network = "the network 'convnet' trained on 'bokeh'"
    assert line.endswith(f"run the run of a depth network, the only kind so far, got {network}")


PLUGIN = """
import fcal.models
from torch import nn
from torch.distributions import Normal


class Flat(nn.Module):
    def __init__(self, deterministic=False):
        super().__init__()
        self.layer, self.deterministic = nn.Conv2d(3, 1, 1), deterministic

    def forward(self, images):
        depth = 10 + self.layer(images)[:, 0]
        return depth if self.deterministic else Normal(depth, 2.0)


fcal.models.register("flat", Flat)
"""


@pytest.mark.usefixtures("names_forgotten")
def test_network_of_a_plugin_predicts_depth_if_it_was_trained_on_it(image, tmp_path, capsys, monkeypatch):
    plugin = tmp_path / "flat.py"
    plugin.write_text(PLUGIN)
    config = tmp_path / "flat.toml"
    config.write_text(
        '[data]\nname = "street"\noptions = {frames = 9, frames_per_drive = 1, height = 16, width = 52}\n'
        '[model]\nname = "flat"\n[fit]\nepochs = 1\n'
    )
    words = ["train", str(config), "--plugin", str(plugin)]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    point = ["--set", "model.options.deterministic=true", "--set", "objective.name=silog"]
    assert main([*words, *point, "--out", str(tmp_path / "point")]) == 0
    assert predicted(tmp_path / "run", image, "--plugin", plugin, "--out", tmp_path / "out") == 0
    assert_array_equal(stored(tmp_path / "out/frame_sigma.png"), 2 * 256)
    line = refusal(tmp_path / "point", capsys, image, "--plugin", plugin, "--out", tmp_path / "other")
    assert line.endswith(
        "frame.png: expected a network that predicts a distribution, got one that predicts depth alone"
    )
    monkeypatch.delitem(models._FACTORIES._entries, "flat")  # each command is a process of its own
    line = refusal(tmp_path / "run", capsys, image, "--out", tmp_path / "other")
    assert line.startswith(f"fcal: {tmp_path / 'run'}: model.name: expected `model` one of ")
    assert line.endswith("; --plugin names the module or .py file that registered it for the training")
