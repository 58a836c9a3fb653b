"""Bokeh: images equal on every machine, disjoint splits, and noise of the declared distribution."""

import hashlib
import os
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import slow_bokeh
import torch
from numpy._core import _multiarray_umath
from scipy import stats
from torch.utils.data import DataLoader, RandomSampler

import fcal
import fcal.data as data
from fcal.data import Bokeh, BokehConfig, BokehSplits
from fcal.data.bokeh import REGIMES, SPLITS, Regime
from fcal.data.label_noise import NOISES as LAWS

SMALL = BokehConfig(images=50, extra=20, size=16, radius=0.12)
NOISES = ["homoscedastic", "heteroscedastic", "gamma", "laplace", "student-t"]
FIXED = Regime(fewest=2, most=5, smallest=0.06, largest=0.2, sigma=0.03, far=0.01, near=0.05, reach=0.1)


def everything(dataset: Bokeh) -> dict[str, torch.Tensor]:
    return dict(dataset[:])


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


@pytest.fixture
def _fixed_regime(monkeypatch):
    monkeypatch.setattr(REGIMES, "_entries", {**REGIMES._entries, "fixed": FIXED})


# -- bytes


@pytest.mark.usefixtures("_fixed_regime")
@pytest.mark.parametrize("noise", ["homoscedastic", "heteroscedastic"])
@pytest.mark.parametrize("size", [24, 70])
def test_dataset_is_that_of_a_slow_implementation_written_by_hand(noise, size):
    config = BokehConfig(noise=noise, regime="fixed", images=10, extra=2, size=size, seed=11)
    found = [
        {name: value[i].numpy() for name, value in everything(part).items()}
        for part in parts(config)
        for i in range(len(part))
    ]
    assert len(found) == 12
    for item, own in enumerate(found):
        slow = slow_bokeh.sample(config, FIXED, item)
        np.testing.assert_array_equal(own["input"], slow.image)
        np.testing.assert_array_equal(own["truth"], np.float32(slow.truth))
        np.testing.assert_array_equal(own["sigma"], np.float32([slow.sigma] * 2))
        np.testing.assert_array_equal(own["target"], np.float32(slow.target))


@pytest.mark.usefixtures("_fixed_regime")
def test_dataset_of_a_seed_has_always_the_same_bytes():
    config = BokehConfig(noise="heteroscedastic", regime="fixed", images=10, extra=2, size=24, seed=11)
    digest = hashlib.sha256()
    for part in parts(config):
        for values in everything(part).values():
            digest.update(values.numpy().astype(values.numpy().dtype.newbyteorder("<")).tobytes())
    # Computed with tests/slow_bokeh.py alone, whose samples the test above compares one by one.
    assert digest.hexdigest() == "840dfd7eff47498abd8b0da23a46b2ef2c850fe6a0b48893cef6dae101af649a"


def parts(config: BokehConfig) -> list[Bokeh]:
    return [Bokeh(split, config) for split in SPLITS]


def test_seeds_differ_and_noise_leaves_the_images_alone():
    base = everything(Bokeh("train", SMALL))
    other = everything(Bokeh("train", replace(SMALL, seed=1)))
    assert not torch.equal(base["input"], other["input"])
    for noise in NOISES[1:]:
        noisy = everything(Bokeh("train", replace(SMALL, noise=noise)))
        assert torch.equal(noisy["input"], base["input"])
        assert torch.equal(noisy["truth"], base["truth"])
        assert not torch.equal(noisy["target"], base["target"])


# -- indexing


def test_samples_are_the_same_however_they_are_asked_for():
    whole = everything(Bokeh("train", SMALL))
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0)).tolist()
    dataset = Bokeh("train", SMALL)
    for index in order:
        assert_same(dict(dataset[index]), {name: values[index] for name, values in whole.items()})
    assert_same(dict(dataset[-1]), {name: values[29] for name, values in whole.items()})
    batch = {name: values[order[:7]] for name, values in whole.items()}
    assert_same(dict(Bokeh("train", SMALL).__getitems__(order[:7])), batch)
    assert_same(dict(dataset[5:25:4]), {name: values[5:25:4] for name, values in whole.items()})
    assert len(dataset.__getitems__([])["input"]) == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_gives_the_same_batches_with_any_number_of_workers(workers):
    dataset = Bokeh("train", SMALL)
    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(3))
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=workers, collate_fn=dict)
    order = list(RandomSampler(dataset, generator=torch.Generator().manual_seed(3)))
    found = list(loader)
    assert len(found) == 4
    for k, batch in enumerate(found):
        assert_same(batch, dict(dataset.__getitems__(order[8 * k : 8 * k + 8])))


DIGEST = """
import hashlib, sys
import numpy, torch
from fcal.data import Bokeh, BokehConfig

for noise in sys.argv[1:]:
    batch = Bokeh("test", BokehConfig(noise=noise, images=20_000, size=8, radius=0.2))[:]
    print(hashlib.sha256(b"".join(values.numpy().tobytes() for values in batch.values())).hexdigest())
x = numpy.linspace(0.001, 0.999, 10_001)
print(hashlib.sha256(torch.special.ndtri(torch.from_numpy(x)).numpy().tobytes() + numpy.exp(x).tobytes()).hexdigest())
"""


def digests(**environment: str) -> list[str]:
    command = [sys.executable, "-W", "error", "-c", DIGEST, *NOISES]
    run = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return run.stdout.split()


def test_processor_without_vector_instructions_draws_the_same_bytes():
    features = _multiarray_umath.__cpu_features__
    extra = [name for name in _multiarray_umath.__cpu_dispatch__ if features.get(name)]
    if not extra or torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("this processor has no vector instructions that could be switched off")
    *usual, functions = digests()
    *plain, other_functions = digests(ATEN_CPU_CAPABILITY="default", NPY_DISABLE_CPU_FEATURES=" ".join(extra))
    assert functions != other_functions  # else the switch had no effect
    assert len(set(usual)) == len(NOISES)
    assert usual == plain


def test_pickle_holds_no_images():
    dataset = Bokeh("train", SMALL)
    before = everything(dataset)
    packed = pickle.dumps(dataset)
    assert len(packed) < 1000
    assert_same(everything(pickle.loads(packed)), before)
    splits = BokehSplits(SMALL)
    assert len(splits.train[:]["input"]) == 30
    assert len(pickle.dumps(splits)) < 2000


def test_index_beyond_the_split_is_refused():
    dataset = Bokeh("test", SMALL)
    for index in (10, -11):
        with pytest.raises(IndexError, match=f"expected `index` within 10 images, got {index}"):
            dataset[index]


def test_iteration_ends():
    assert len(list(Bokeh("test", SMALL))) == 10


# -- splits


@pytest.mark.parametrize("images", [5, 7, 50, 10_000])
def test_splits_are_three_to_one_to_one_and_cover_everything(images):
    splits = BokehSplits(BokehConfig(images=images, extra=9))
    sizes = [len(splits.train), len(splits.validation), len(splits.test)]
    assert sum(sizes) == images
    assert all(abs(size - share * images / 5) < 1 for size, share in zip(sizes, (3, 1, 1), strict=True))
    assert len(splits.extra) == 9


def test_splits_share_no_image():
    seen = torch.cat([part[:]["truth"] for part in parts(replace(SMALL, images=500, extra=200, size=64))])
    assert len(torch.unique(seen, dim=0)) >= 698  # of 700 centres on a grid of 860 x 860: at most two chance pairs


def test_splits_do_not_depend_on_the_extra_pool():
    for split in ("train", "validation", "test"):
        assert_same(everything(Bokeh(split, SMALL)), everything(Bokeh(split, replace(SMALL, extra=0))))
    longer = everything(Bokeh("extra", replace(SMALL, extra=40)))
    assert_same({name: values[:20] for name, values in longer.items()}, everything(Bokeh("extra", SMALL)))
    assert len(Bokeh("extra", replace(SMALL, extra=0))[:]["input"]) == 0


def test_pool_is_large_by_default():
    assert len(Bokeh("extra")) >= 20_000


# -- scenes


@pytest.mark.parametrize("regime", REGIMES.names())
@pytest.mark.parametrize("size", [9, 21, 64, 100, 150])
def test_red_disc_lies_within_the_image_of_any_size(regime, size):
    config = BokehConfig(regime=regime, images=200, size=size, radius=0.15)
    batch = everything(Bokeh("train", config))
    assert batch["input"].shape == (120, 3, size, size)
    truth, radius = batch["truth"].double(), round(0.15 * size * 16) / (16 * size)
    assert (truth >= radius - 1e-6).all()
    assert (truth <= 1 - radius + 1e-6).all()


def is_red(images: torch.Tensor) -> torch.Tensor:
    """Pixels of the one colour that no distractor and no background may have."""
    red, green, blue = images.unbind(1)
    return (red == 252) & (green == 36) & (blue == 36)


@pytest.mark.parametrize("regime", REGIMES.names())
def test_red_pixels_are_those_of_the_one_disc(regime):
    config = BokehConfig(regime=regime, images=1000)
    batch = everything(Bokeh("train", config))
    red = is_red(batch["input"])
    centres = (torch.arange(64) + 0.5) / 64
    x, y = batch["truth"].unbind(1)
    squared = (centres - x[:, None, None]) ** 2 + (centres[:, None] - y[:, None, None]) ** 2
    # The radius is rounded to a sixteenth of a pixel.
    assert (squared[red].sqrt() <= config.radius + 0.5 / 16 / 64 + 1e-6).all()
    # Nothing else is even reddish: what hides the disc, and what is far from it, has red below green or is grey.
    others = batch["input"].permute(0, 2, 3, 1)[~red].short()
    assert (others[:, 0] <= 3 * 36).all()


@pytest.mark.parametrize("regime", REGIMES.names())
def test_occlusion_happens_and_spares_most_discs(regime, record_property):
    batch = everything(Bokeh("train", BokehConfig(regime=regime, images=3000)))
    seen = is_red(batch["input"]).sum(dim=(1, 2)).double()
    share = 1 - seen / seen.max()
    partly, hidden = (share > 0.1).double().mean().item(), (seen == 0).double().mean().item()
    record_property("share of discs with more than a tenth hidden", partly)
    record_property("share of discs hidden altogether", hidden)
    assert 0.02 < partly < 0.9
    assert hidden < 0.3


def test_count_of_distractors_is_uniform():
    # False-alarm rate 1e-6.
    regime = REGIMES["paper-like"]
    discs = Bokeh("train", BokehConfig(images=5000))._scenes.discs
    count = (discs.radius >= 0).sum(axis=1) - 1
    found = np.bincount(count, minlength=regime.most + 1)[regime.fewest :]
    assert found.sum() == 3000
    assert stats.chisquare(found).pvalue > 1e-6


# -- noise


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("regime", REGIMES.names())
def test_residuals_under_the_law_are_standard_normal(noise, regime):
    # False-alarm rate 1e-6 for each of the three tests.
    dataset = Bokeh("train", BokehConfig(noise=noise, regime=regime, images=10_000, size=8, radius=0.2, shape=4.0))
    z = fcal.standardize(dataset.law(), dataset[:]["target"].double()).numpy()
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-6
    assert abs(z.mean()) < stats.norm.isf(5e-7) / np.sqrt(z.size)
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], z.size)
    assert low < (z**2).sum() < high
    assert abs(stats.pearsonr(z[:, 0], z[:, 1])[0]) < stats.norm.isf(5e-7) / np.sqrt(len(z))


@pytest.mark.parametrize("noise", NOISES)
def test_sigma_is_the_standard_deviation_of_the_noise(noise):
    # Errors over sigma have mean 0 and variance 1 by definition, for any distribution; six standard errors.
    dataset = Bokeh("train", BokehConfig(noise=noise, images=20_000, size=8, radius=0.2, shape=10.0))
    batch = everything(dataset)
    errors = ((batch["target"] - batch["truth"]) / batch["sigma"]).double().numpy().ravel()
    assert abs(errors.mean()) < 6 / np.sqrt(errors.size)
    assert abs((errors**2).mean() - 1) < 6 * (errors**2).std() / np.sqrt(errors.size)


def test_paper_like_noise_has_the_size_that_the_paper_implies():
    # From the paper's tables, L1 - L1(GT): .031 rms with equal noise, .014 where it varies.
    for noise, rms, tolerance in (("homoscedastic", 0.031, 0.03), ("heteroscedastic", 0.014, 0.15)):
        batch = everything(Bokeh("train", BokehConfig(noise=noise, images=10_000)))
        found = (batch["target"] - batch["truth"]).square().mean().sqrt().item()
        assert found == pytest.approx(rms, rel=tolerance)


@pytest.mark.parametrize("regime", REGIMES.names())
def test_heteroscedastic_sigma_falls_with_the_distance_to_the_nearest_distractor(regime):
    dataset = Bokeh("train", BokehConfig(noise="heteroscedastic", regime=regime, images=2000))
    sigma, truth = dataset[:]["sigma"][:, 0].numpy(), dataset[:]["truth"].numpy()
    discs = dataset._scenes.discs
    red = (discs.colour == (7, 1, 1)).all(axis=-1)
    assert (red.sum(axis=1) == 1).all()
    away = np.hypot(discs.x / 1024 - truth[:, :1], discs.y / 1024 - truth[:, 1:])
    nearest = np.where(red | (discs.radius < 0), np.inf, away).min(axis=1)
    order = np.argsort(nearest)
    # Centres of distractors are rounded to 1/1024 for rendering, not for sigma: only larger differences count.
    later = np.searchsorted(nearest[order], nearest[order] + 2e-3)
    followed = later < len(order)
    assert (sigma[order][followed] > sigma[order][later[followed]]).mean() == 1
    settings = REGIMES[regime]
    assert (sigma > settings.far - 2**-24).all()
    assert (sigma < settings.near + 2**-24).all()
    assert sigma.std() > 0.1 * sigma.mean()


@pytest.mark.parametrize("noise", [noise for noise in NOISES if noise != "heteroscedastic"])
def test_sigma_of_other_noises_is_the_same_everywhere(noise):
    sigma = Bokeh("train", replace(SMALL, noise=noise))[:]["sigma"]
    assert (sigma == sigma[0, 0]).all()
    assert sigma[0, 0].item() == pytest.approx(REGIMES["paper-like"].sigma, abs=2**-24)


@pytest.mark.parametrize("noise", NOISES)
def test_sigma_and_truth_are_exactly_those_of_the_law(noise):
    dataset = Bokeh("train", replace(SMALL, noise=noise))
    rebuilt = LAWS[noise](dataset[:]["truth"].double(), dataset[:]["sigma"].double(), dataset.config.shape)
    assert torch.equal(rebuilt.mean, dataset.law().mean)
    assert torch.equal(rebuilt.stddev, dataset.law().stddev)


def test_sigma_does_not_depend_on_the_last_digits_of_an_exponential(monkeypatch):
    config = replace(SMALL, noise="heteroscedastic", images=5000)
    expected = Bokeh("train", config)[:]
    exact = np.exp
    monkeypatch.setattr(np, "exp", lambda x: exact(x) * (1 + 1e-14))
    assert_same(dict(Bokeh("train", config)[:]), dict(expected))


# -- rejected input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": "gama"}, "expected `noise` one of .*, got 'gama' \\(did you mean 'gamma'\\?\\)"),
        ({"regime": "paper"}, "expected `regime` one of 'paper-like', 'noise-dominated', got 'paper'"),
        ({"radius": 0.5}, r"expected `radius` of a disc that fits into the image, within \[0.015625, 0.484375\]"),
        ({"radius": 0.01}, "expected `radius` of a disc that fits into the image, .* got 0.01"),
        ({"radius": float("nan")}, "expected `radius` within"),
        ({"radius": -1.0}, "expected `radius` within"),
        ({"noise": "student-t", "shape": 2.0}, "expected `shape` within \\[2.05, "),
        ({"noise": "gamma", "shape": 0.0}, "expected `shape` within \\[0.05, "),
        ({"size": 7}, "expected `size` >= 8, got 7"),
        ({"size": 4096}, "expected `size` <= 1024, got 4096"),
        ({"images": 4}, "expected `images` >= 5, got 4"),
        ({"extra": -1}, "expected `extra` >= 0, got -1"),
        ({"seed": -1}, "expected `seed` >= 0, got -1"),
        ({"seed": 2**63}, f"expected `seed` <= {2**63 - 1}, got {2**63}"),
        ({"radius": 10**400}, r"expected `radius` within \[0, 1e\+06\], got 1000"),
    ],
)
def test_config_refuses_what_cannot_be_in_one_line(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        BokehConfig(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"size": 64.0}, {"images": True}, {"seed": "0"}, {"radius": "wide"}])
def test_config_refuses_other_types(options):
    (name,) = options
    with pytest.raises(TypeError, match=f"expected `{name}` an? (int|number), got"):
        BokehConfig(**options)


def test_dataset_refuses_other_types():
    with pytest.raises(TypeError, match="expected `config` a BokehConfig, got dict"):
        Bokeh("train", {"images": 10})
    dataset = Bokeh("train", SMALL)
    for index in (True, 0.5, "0", None):
        with pytest.raises(TypeError, match="expected `index` an int or a slice, got "):
            dataset[index]
    for indices in ([0.5], [True], torch.ones(2, dtype=torch.bool)):
        with pytest.raises(TypeError, match="expected `indices` of int, got torch"):
            dataset.__getitems__(indices)
    assert dataset.__getitems__([])["target"].shape == (0, 2)
    assert dataset.__getitems__(range(3))["target"].shape == (3, 2)


def test_unknown_split_is_refused():
    with pytest.raises(
        ValueError, match="^expected `split` one of 'train', 'validation', 'test', 'extra', got 'valid'$"
    ):
        Bokeh("valid")


def test_options_are_read_by_name_and_a_misspelt_one_is_refused():
    assert BokehSplits.from_options(images=50, radius=0.1).config == BokehConfig(images=50, radius=0.1)
    with pytest.raises(ValueError, match=r"expected `data.options` keys among .*'nose' \(did you mean 'noise'\?\)"):
        BokehSplits.from_options(nose="gamma")
    with pytest.raises(ValueError, match="expected `data.options: images` of type int, got 'many'"):
        BokehSplits.from_options(images="many")


# -- by name


def test_bokeh_is_known_by_name():
    splits = data.by_name("bokeh")(images=10, size=16, radius=0.1)
    assert [len(splits.train), len(splits.validation), len(splits.test)] == [6, 2, 2]
    with pytest.raises(ValueError, match=r"expected `data` one of 'bokeh', .*, got 'boke' \(did you mean 'bokeh'"):
        data.by_name("boke")


def test_options_called_name_are_options(monkeypatch):
    monkeypatch.setattr(data._FACTORIES, "_entries", dict(data._FACTORIES._entries))
    data.register("named", lambda name: name)
    assert data.by_name("named")(name="x") == "x"
    assert data.by_name("named")(3) == 3
    with pytest.raises(TypeError, match="expected `factory` to call with options, got NoneType"):
        data.register("zz", None)


def test_own_data_can_be_registered(monkeypatch):
    monkeypatch.setattr(data._FACTORIES, "_entries", dict(data._FACTORIES._entries))
    data.register("half", lambda size: BokehSplits(replace(SMALL, size=size)))
    assert {"bokeh", "half"} <= set(data.names())
    assert data.by_name("half")(size=16).train[0]["input"].shape == (3, 16, 16)
    with pytest.raises(ValueError, match="not taken, got 'half'"):
        data.register("half", BokehSplits)
    data.register("half", BokehSplits, replace=True)
