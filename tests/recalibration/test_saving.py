"""Saved recalibrators: the same after loading, and every kind of damage refused."""

import json
from pathlib import Path

import pytest
import torch
from torch.distributions import Normal

from fcal.recalibration import Affine, Conformal, GPBeta, Isotonic, Recalibrator, Temperature, load

ALL = {
    "temperature": lambda: Temperature(per_output=True),
    "affine": Affine,
    "isotonic": lambda: Isotonic(knots=7),
    "conformal": Conformal,
    "gp-beta": lambda: GPBeta(inducing=5, steps=10),
}


def prediction() -> Normal:
    generator = torch.Generator().manual_seed(0)
    return Normal(torch.randn(30, 2, generator=generator), torch.rand(30, 2, generator=generator) + 0.5)


def target() -> torch.Tensor:
    return 2 * torch.randn(30, 2, generator=torch.Generator().manual_seed(1))


def saved(folder: Path, name: str = "isotonic") -> Recalibrator:
    fitted = ALL[name]().fit(prediction(), target())
    fitted.save(folder)
    return fitted


@pytest.mark.parametrize("name", ALL)
def test_loaded_recalibrator_repairs_exactly_as_the_saved_one(tmp_path: Path, name: str):
    fitted, loaded = saved(tmp_path, name), load(tmp_path)
    assert type(loaded) is type(fitted)
    assert loaded.fitted_on == fitted.fitted_on
    assert loaded._options() == fitted._options()
    y = target()
    torch.testing.assert_close(
        loaded.transform(prediction()).log_prob(y), fitted.transform(prediction()).log_prob(y), rtol=0, atol=0
    )


def test_saving_replaces_an_earlier_recalibrator_and_leaves_no_other_file(tmp_path: Path):
    saved(tmp_path, "isotonic")
    saved(tmp_path, "temperature")
    assert isinstance(load(tmp_path), Temperature)
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".json", ".safetensors"]


def test_every_flipped_byte_of_either_file_is_noticed(tmp_path: Path):
    saved(tmp_path)
    for path in tmp_path.iterdir():
        whole = path.read_bytes()
        for at in range(0, len(whole), max(len(whole) // 60, 1)):
            damaged = bytearray(whole)
            damaged[at] ^= 1
            path.write_bytes(bytes(damaged))
            if path.suffix == ".json" and _says_the_same(whole, bytes(damaged)):
                continue  # white space
            with pytest.raises(ValueError, match="expected"):
                load(tmp_path)
        path.write_bytes(whole)
    load(tmp_path)


def _says_the_same(one: bytes, other: bytes) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def test_missing_and_truncated_files_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="expected a recalibrator's file .*recalibrator.json, got No such file"):
        load(tmp_path)
    saved(tmp_path)
    (tensors,) = tmp_path.glob("*.safetensors")
    whole = tensors.read_bytes()
    tensors.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="got another: the file is damaged"):
        load(tmp_path)
    tensors.unlink()
    with pytest.raises(ValueError, match="expected a recalibrator's file .*safetensors, got No such file"):
        load(tmp_path)


def test_unknown_versions_formats_and_classes_are_refused(tmp_path: Path):
    saved(tmp_path)
    path = tmp_path / "recalibrator.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"version": 2}))
    with pytest.raises(ValueError, match="of version 1, got 2"):
        load(tmp_path)
    path.write_text(json.dumps({"format": "other"}))
    with pytest.raises(ValueError, match="expected .* a saved recalibrator, got another document"):
        load(tmp_path)
    path.write_text("{")
    with pytest.raises(ValueError, match="a JSON document, got one that is damaged"):
        load(tmp_path)
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="expected `folder` with a recalibrator 'affine', got 'isotonic'"):
        Affine.load(tmp_path)
    assert isinstance(Isotonic.load(tmp_path), Isotonic)


def test_unfitted_recalibrator_is_not_saved(tmp_path: Path):
    with pytest.raises(ValueError, match="expected `Isotonic` to be fitted before this"):
        Isotonic().save(tmp_path / "new")
    assert not (tmp_path / "new").exists()
