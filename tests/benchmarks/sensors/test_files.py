"""Files of sensors: checksums before anything is read, and matrices as SciPy wrote them."""

import random
import sys

import numpy as np
import pytest
from benchmarks.sensors.made_up import ABSENT, DATA, list_checksums, write_all, write_gnss, write_laser
from numpy.testing import assert_array_equal
from scipy.io import loadmat, savemat

from fcal.benchmarks.sensors.files import GNSS, GNSS_TRUTH, LANDMARKS, LASER, data_file, matrices, published_sums
from fcal.benchmarks.sensors.readings import read_gnss, read_laser


@pytest.mark.parametrize("packed", [False, True])
def test_matrices_are_those_that_scipy_wrote(tmp_path, packed):
    rng = np.random.default_rng(0)
    wrote = {
        "doubles": rng.standard_normal((7, 3)),
        "one": np.array([[0.5]]),
        "floats": rng.standard_normal((2, 5)).astype(np.float32),
        "bytes": np.arange(6, dtype=np.uint8).reshape(3, 2),
        "longs": np.arange(4, dtype=np.int64).reshape(1, 4),
        "a_name_that_is_longer_than_a_tag": np.eye(2, dtype=np.int16),
    }
    path = tmp_path / "some.mat"
    others = {"words": "far", "cell": np.array([1, "a"], dtype=object), "i": np.array([[1j]]), "none": np.zeros((0, 3))}
    savemat(path, {**wrote, **others}, do_compression=packed)
    found = matrices(path, {name: values.shape for name, values in wrote.items()})
    assert list(found) == list(wrote)
    for name, values in wrote.items():
        assert found[name].dtype == np.float64
        assert_array_equal(found[name], values)
    for name in ("words", "cell", "i"):
        with pytest.raises(ValueError, match=f"some.mat with a matrix of numbers `{name}`, got doubles, one, floats"):
            matrices(path, {name: (1, 1)})
    with pytest.raises(ValueError, match=r"`none` of .*some.mat of shape \(0, 3\), got \(0, 3\)"):
        matrices(path, {"none": ("n", 3)})


@pytest.mark.skipif(not DATA.is_dir(), reason=ABSENT)
@pytest.mark.parametrize("name", [LASER, LANDMARKS])
def test_real_matrices_are_read_as_scipy_reads_them(name):
    expected = {key: value for key, value in loadmat(DATA / name).items() if not key.startswith("__")}
    found = matrices(data_file(DATA, name), {key: value.shape for key, value in expected.items()})
    for key, values in expected.items():
        assert_array_equal(found[key], values)


@pytest.mark.skipif(not DATA.is_dir(), reason=ABSENT)
def test_published_checksums_are_those_of_the_real_files():
    assert set(published_sums()) == {LASER, LANDMARKS, GNSS, GNSS_TRUTH}
    for name in published_sums():
        assert data_file(DATA, name) == DATA / name


@pytest.mark.parametrize("packed", [False, True])
def test_damaged_files_are_refused_before_scipy_sees_them(tmp_path, packed, monkeypatch):
    """Bytes changed and cut at random; SciPy's reader ends the process on some of these."""
    path = write_laser(tmp_path, moments=60)
    if packed:
        savemat(path, {k: v for k, v in loadmat(path).items() if not k.startswith("__")}, do_compression=True)
        list_checksums(tmp_path)
    whole, draw = path.read_bytes(), random.Random(0)
    read_laser(tmp_path)
    monkeypatch.setattr("scipy.io.loadmat", lambda path: pytest.fail(f"read {path}"))
    damaged = 0
    for _ in range(400):
        content = bytearray(whole)
        for _ in range(draw.choice((1, 2, 8))):
            content[draw.randrange(120, 400 if draw.random() < 0.5 else len(content))] = draw.randrange(256)
        content = bytes(content[: draw.randrange(len(content)) if draw.random() < 0.2 else None])
        if content == whole:  # a byte was replaced by itself
            continue
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"^expected {path} with the SHA-256 [0-9a-f]{{12}}\.\.\., got [0-9a-f]"):
            read_laser(tmp_path)
        damaged += 1
    assert damaged > 350


def test_other_files_than_the_published_ones_are_refused_unless_they_are_listed(tmp_path):
    write_all(tmp_path)
    (tmp_path / "SHA256SUMS").unlink()
    for reader in (read_laser, read_gnss):
        with pytest.raises(ValueError, match="list data of your own in .*SHA256SUMS") as refusal:
            reader(tmp_path)
        assert "\n" not in str(refusal.value)
    list_checksums(tmp_path)
    assert len(read_laser(tmp_path)) == 900


def test_a_text_file_that_was_changed_is_refused(tmp_path):
    path = write_gnss(tmp_path, moments=2)
    path.write_text(path.read_text().replace(" 25.0 ", " 26.0 ", 1))
    with pytest.raises(ValueError, match=f"^expected {path} with the SHA-256 "):
        read_gnss(tmp_path)


def test_without_scipy_the_extra_is_named(tmp_path, monkeypatch):
    write_laser(tmp_path)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(ImportError, match=r"^expected scipy for MATLAB files; pip install 'fcal\[sensors\]'$"):
        read_laser(tmp_path)
