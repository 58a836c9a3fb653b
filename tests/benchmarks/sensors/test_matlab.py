"""MATLAB files: what SciPy writes and reads is the reference."""

import random

import numpy as np
import pytest
from benchmarks.sensors.made_up import ABSENT, DATA, write_laser
from numpy.testing import assert_array_equal
from scipy.io import loadmat, savemat

from fcal.benchmarks.sensors import read_laser
from fcal.benchmarks.sensors.matlab import matlab_matrices


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
        "none": np.zeros((0, 3)),
    }
    path = tmp_path / "some.mat"
    savemat(path, {**wrote, "words": "far", "cell": np.array([1, "a"], dtype=object), "i": np.array([[1j]])},
            do_compression=packed)  # fmt: skip
    found = matlab_matrices(path)
    assert list(found) == list(wrote)
    for name, values in wrote.items():
        assert_array_equal(found[name], values)


@pytest.mark.skipif(not DATA.is_dir(), reason=ABSENT)
@pytest.mark.parametrize("name", ["dataset1.mat", "dataset2.mat"])
def test_real_files_are_read_as_scipy_reads_them(name):
    path = DATA / "barfoot_ser" / name
    found, expected = matlab_matrices(path), loadmat(path)
    assert set(found) == {key for key in expected if not key.startswith("__")}
    for key, values in found.items():
        assert_array_equal(values, expected[key])


@pytest.mark.parametrize("packed", [False, True])
def test_damaged_files_are_refused_or_read_and_never_more(tmp_path, packed):
    """Bytes changed and cut at random; SciPy's own reader ends the process on some of these."""
    path = write_laser(tmp_path, moments=60)
    if packed:
        savemat(path, {k: v for k, v in loadmat(path).items() if not k.startswith("__")}, do_compression=True)
    whole, draw = path.read_bytes(), random.Random(0)
    refused = []
    for _ in range(400):
        content = bytearray(whole)
        for _ in range(draw.choice((1, 2, 8))):
            content[draw.randrange(120, 400 if draw.random() < 0.5 else len(content))] = draw.randrange(256)
        path.write_bytes(content[: draw.randrange(len(content)) if draw.random() < 0.2 else None])
        try:
            read_laser(tmp_path)
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert all(line.startswith("expected ") for line in refused)
