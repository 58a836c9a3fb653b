"""Readers of sensor data: the known models against definitions of their own, and the numbers that the source states."""

import numpy as np
import pytest
from benchmarks.sensors.made_up import (
    ABSENT,
    DATA,
    list_checksums,
    write_all,
    write_gnss,
    write_landmarks,
    write_laser,
)
from numpy.testing import assert_allclose

from fcal.benchmarks.sensors.readings import read_gnss, read_landmarks, read_laser, stretches, tracks

real = pytest.mark.skipif(not DATA.is_dir(), reason=ABSENT)


def robust(errors):
    return 1.4826 * np.median(np.abs(errors))


def binned(readings):
    distance = readings.state["distance"]
    return [readings.error[(distance >= low) & (distance < low + 2)].std() for low in (0, 2, 4)]


def test_laser_error_is_reading_minus_place_of_the_cylinder_less_that_of_the_robot(tmp_path):
    write_laser(tmp_path, sd=0.0, r_var=np.array([[0.04]]))
    found = read_laser(tmp_path)
    assert_allclose(found.error, 0, atol=1e-12)
    assert_allclose(found.stated, 0.2)
    assert_allclose(found.state["speed"], np.abs(found.state["velocity"]))
    assert len(np.unique(found.stretch)) == 18  # 360 seconds


def test_landmark_errors_vanish_without_noise_whatever_the_heading(tmp_path):
    """Readings by complex numbers: another way to the same geometry; the heading goes round several times."""
    write_landmarks(tmp_path, sd=0.0)
    distances, bearings = read_landmarks(tmp_path)
    assert len(distances) == len(bearings) > 500
    assert_allclose(distances.error, 0, atol=1e-12)
    assert_allclose(bearings.error, 0, atol=1e-12)
    assert_allclose(np.hypot(distances.state["bearing_cos"], distances.state["bearing_sin"]), 1)


def test_bearing_errors_go_the_short_way_round(tmp_path):
    write_landmarks(tmp_path, sd=0.2, seed=1)
    _, bearings = read_landmarks(tmp_path)
    assert np.abs(bearings.error).max() < 1.5
    assert np.abs(bearings.reading - bearings.known).max() > 5  # the long way


def test_landmark_readings_without_valid_truth_are_left_out_unless_wanted(tmp_path):
    valid = np.ones((400, 1), dtype=np.uint8)
    valid[100:200] = 0
    write_landmarks(tmp_path, true_valid=valid)
    some, _ = read_landmarks(tmp_path)
    everything, _ = read_landmarks(tmp_path, valid_only=False)
    assert len(some) < len(everything)
    assert not ((some.time > 59.9) & (some.time < 119.9)).any()


def test_gnss_errors_vanish_but_for_the_earths_turn_of_second_order(tmp_path):
    """Distances by a fixed point in a frame that does not turn; the known model is of first order, 1 cm off at most."""
    write_gnss(tmp_path, moments=20, sd=0.0)
    found = read_gnss(tmp_path)
    assert len(found) == 160
    assert_allclose(found.error, 0, atol=0.01)


def test_tracks_are_of_one_target_and_one_stretch(tmp_path):
    write_all(tmp_path)
    for found in (*read_landmarks(tmp_path), read_gnss(tmp_path)):
        for number in np.unique(found.track):
            assert len(np.unique(found.stretch[found.track == number])) == 1


def test_tracks_end_at_gaps():
    time = np.array([0.0, 0.5, 3.0, 3.5, 0.0])
    found = tracks(np.array([1, 1, 1, 1, 2]), time, stretches(time, 100.0))
    assert found.tolist() == [0, 0, 1, 1, 2]


def test_thinned_readings_keep_whole_moments_and_all_stretches(tmp_path):
    write_landmarks(tmp_path)
    found, _ = read_landmarks(tmp_path)
    few = found.thinned(300)
    assert 100 < len(few) <= 330
    assert set(few.stretch) == set(found.stretch)
    assert all((found.time == moment).sum() == (few.time == moment).sum() for moment in np.unique(few.time))


@real
def test_real_laser_has_the_stated_noise():
    """SOURCE.txt: residual sd 0.0192 m equals the stated one, 12,709 ranges."""
    found = read_laser(DATA)
    assert len(found) == 12_709
    assert_allclose(found.error.std(), 0.0192, atol=5e-5)
    assert_allclose(found.stated[0], found.error.std(), rtol=1e-3)


@real
def test_real_landmarks_have_the_noise_of_the_source():
    """SOURCE.txt, on all 61,086 readings: 0.033 m beside 0.030 stated, 0.0257 rad beside 0.0259, and three bins."""
    distances, bearings = read_landmarks(DATA, valid_only=False)
    assert len(distances) == 61_086
    assert_allclose([distances.error.std(), distances.stated[0]], [0.033, 0.030], atol=5e-4)
    assert_allclose([bearings.error.std(), bearings.stated[0]], [0.0257, 0.0259], atol=5e-5)
    assert_allclose(binned(distances), [0.023, 0.029, 0.039], atol=5e-4)
    assert_allclose(binned(bearings), [0.038, 0.013, 0.0075], atol=5e-4)


@real
def test_real_gnss_has_the_noise_of_the_source():
    """SOURCE.txt: 20,038 pseudoranges, robust sd 15.4 m, 117 m at C/N0 < 25, 9.6 m at > 45, to 1 %."""
    found = read_gnss(DATA)
    strength = found.state["strength"]
    assert len(found) == 20_038
    assert_allclose(robust(found.error), 15.4, atol=0.05)
    assert_allclose(robust(found.error[strength < 25]), 117, rtol=0.01)
    assert_allclose(robust(found.error[strength > 45]), 9.6, rtol=0.01)


NAN = np.full((900, 1), np.nan)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r_var": None}, "dataset1.mat with a matrix of numbers `r_var`, got t, x_true, v, r, l$"),
        ({"r": np.zeros((7, 1))}, r"`r` of .*dataset1.mat of shape \(900, 1\), got \(7, 1\)"),
        ({"r": NAN}, r"`r` of .*dataset1.mat finite, got nan \(900 of 900 values\)"),
        ({"l": "far"}, "dataset1.mat with a matrix of numbers `l`, got t, x_true, v, r, r_var$"),
        ({"r_var": np.array([[-1.0]])}, "`r_var` of .*dataset1.mat above 0, got -1"),
        ({"t": np.zeros((900, 1))}, "`t` of .*dataset1.mat rising, got 0 s"),
    ],
)
def test_laser_reader_refuses(tmp_path, changes, message):
    write_laser(tmp_path, **changes)
    with pytest.raises(ValueError, match=f"^expected .*{message}"):
        read_laser(tmp_path)


def test_landmark_reader_refuses_a_file_without_readings(tmp_path):
    write_landmarks(tmp_path, r=np.zeros((400, 3)))
    with pytest.raises(ValueError, match="expected .*dataset2.mat with ranges above 0, got none"):
        read_landmarks(tmp_path)


def test_reader_refuses_what_is_no_matlab_file(tmp_path):
    path = write_laser(tmp_path)
    for content in (b"", b"not a matlab file", path.read_bytes()[:700], b"\x00" * 300):
        path.write_bytes(content)
        list_checksums(tmp_path)
        with pytest.raises(ValueError, match="expected .*dataset1.mat a MATLAB file of version 4 to 7, got: "):
            read_laser(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("pseudorange3", "pseudorange", "line 2 of .* to begin with pseudorange3 or odom3, got 'pseudorange'"),
        (" 45.0 40.0", " 45.0", "10 numbers after pseudorange3 in line 3 of .*, got 9"),
        (" 45.0 40.0", " 45.0 nan", "finite numbers in line 3 of "),
        (" 45.0 40.0", " 45.0 high", "numbers in line 3 of .*, got: could not convert string to float: 'high'"),
        (" 1.0 45.0 40.0", " 8.0 45.0 40.0", r"satellites of GPS \(1\) or GLONASS \(4\) in .*, got 8"),
        ("pseudorange3 0.0", "pseudorange3 0.5", "the position at all moments, got none at 0.5 s"),
        (" 25.0 ", " 0.0 ", r"covariances of .* above 0, got 0 \(1 of 64 values\)"),
    ],
)
def test_gnss_reader_refuses(tmp_path, old, new, message):
    path = write_gnss(tmp_path, moments=8)
    path.write_text(path.read_text().replace(old, new, 1))
    list_checksums(tmp_path)
    with pytest.raises(ValueError, match=f"expected .*{message}"):
        read_gnss(tmp_path)


def test_gnss_reader_refuses_bytes(tmp_path):
    write_gnss(tmp_path, moments=2).write_bytes(b"\xff\xfe\x00")
    list_checksums(tmp_path)
    with pytest.raises(ValueError, match="a text file in UTF-8, got other bytes"):
        read_gnss(tmp_path)


@pytest.mark.parametrize("reader", [read_laser, read_landmarks, read_gnss])
def test_readers_name_the_file_that_is_missing(tmp_path, reader):
    with pytest.raises(ValueError, match=f"expected `data` a folder with .*, got {tmp_path}, which has none"):
        reader(tmp_path)
