"""Files of torch.save: tensors alone, nothing is unpickled."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fcal.tables import Columns, TableError, open_predictions, whole

N = 20
MEAN, STD, TARGET = torch.randn(N), torch.rand(N) + 0.5, torch.randn(N)
GOOD = {"mean": MEAN, "std": STD, "target": TARGET}


def saved(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dictionaries_of_tensors_are_columns(tmp_path: Path, suffix: str, dtype: torch.dtype) -> None:
    content = {name: value.to(dtype) for name, value in GOOD.items()}
    pred, target = whole(open_predictions(saved(tmp_path / f"p{suffix}", content), chunk_rows=6))
    assert pred.mean.tolist() == content["mean"].tolist()
    assert target.tolist() == content["target"].tolist()


def test_a_tensor_of_three_columns_parameters_and_old_files(tmp_path: Path) -> None:
    table = torch.stack([MEAN, STD, TARGET], 1)
    path = tmp_path / "p.pt"
    for content, options in (
        (table, {}),
        (torch.nn.Parameter(table), {}),
        (table, {"_use_new_zipfile_serialization": False}),
        (table.T.contiguous().T, {}),
    ):
        torch.save(content, path, **options)
        assert whole(open_predictions(path))[0].stddev.tolist() == STD.tolist()


def test_tensors_of_several_outputs_groups_and_samples(tmp_path: Path) -> None:
    content = {
        "mean": torch.randn(N, 2),
        "std": torch.ones(N, 2),
        "target": torch.zeros(N, 2),
        "drive": torch.arange(N),
    }
    source = open_predictions(saved(tmp_path / "p.pt", content), columns=Columns(cluster="drive"))
    assert whole(source)[0].mean.tolist() == content["mean"].tolist()
    samples = saved(tmp_path / "s.pt", {"samples": torch.randn(N, 7), "target": TARGET})
    assert "7 samples: 'samples_0' to 'samples_6'" in open_predictions(samples).describe()


class Model:
    """Anything that is no tensor."""


REFUSED = {
    "an object": (Model(), "with tensors alone, got other objects, which are never loaded; save a dict of tensors"),
    "arrays of NumPy": ({"mean": np.zeros(3)}, "with tensors alone, got other objects"),
    "a list": ([MEAN, STD], "with one tensor or a dict of tensors, got a list"),
    "nothing": ({}, "got an empty dict"),
    "a number": ({**GOOD, "epoch": 3}, "got a int under 'epoch'"),
    "another shape": (torch.zeros(4, 5), r"a tensor of shape \\(N, 3\\), .* got shape \\(4, 5\\)"),
    "one value": ({**GOOD, "std": torch.tensor(1.0)}, "a single value"),
    "lengths": ({**GOOD, "std": STD[:5].clone()}, "with tensors of one length"),
    "repeated values": ({**GOOD, "std": torch.ones(1).expand(10**12)}, "use .contiguous"),
    "sparse": ({**GOOD, "std": STD.to_sparse()}, "with a dense tensor 'std'"),
    "complex": ({**GOOD, "std": STD.to(torch.complex64)}, "got dtype complex64"),
    "no std": ({"mean": MEAN, "target": TARGET}, "with a column 'std'"),
    "of 8 bits": ({**GOOD, "std": STD.to(torch.float8_e4m3fn)}, "dtype"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_anything_else_is_one_line(tmp_path: Path, what: str) -> None:
    content, message = REFUSED[what]
    with pytest.raises(TableError, match=message.replace("\\\\", "\\")) as caught:
        whole(open_predictions(saved(tmp_path / "p.pt", content)))
    assert "\n" not in str(caught.value)


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    path = saved(tmp_path / "p.pt", GOOD)
    content = path.read_bytes()
    for damaged in (content[:100], content[: len(content) // 2], b"mean,std,target\n1,2,3\n", b"\x80\x02."):
        path.write_bytes(damaged)
        with pytest.raises(TableError) as caught:
            whole(open_predictions(path))
        assert "\n" not in str(caught.value)
