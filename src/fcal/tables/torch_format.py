"""Files of ``torch.save``: tensors alone, which are loaded without unpickling anything else."""

import pickle
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from fcal.tables.numpy_format import NPY_COLUMNS, Member, problem_of
from fcal.tables.readers import TableFile, file_error, message_of, shown

_SAVE = 'save a dict of tensors: torch.save({"mean": ..., "std": ..., "target": ...}, FILE)'


class TensorFile(TableFile):
    """Reader of a dictionary of tensors by name, or of one tensor of the columns mean, std and target."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        content = self._load()
        if isinstance(content, Tensor):
            self._members = {"tensor": content}
            if content.dim() != 2 or content.shape[1] != len(NPY_COLUMNS):
                shape = f"shape {tuple(content.shape)}"
                raise file_error(path, "a tensor of shape (N, 3), mean, std and target, or a dict of tensors", shape)
            columns = [(name, ("tensor", position)) for name, position in NPY_COLUMNS.items()]
        else:
            self._members = content
            members = (self._member(name, tensor) for name, tensor in content.items())
            columns = [(name, (member.name, position)) for member in members for name, position in _positions(member)]
        self._columns, self.names = dict(columns), tuple(name for name, _ in columns)
        self.check_names()
        self._problems = {name: self._member(name, tensor).problem for name, tensor in self._members.items()}

    def batches(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """The columns as they are stored, half precision as float32."""
        names = list(dict.fromkeys([*numbers, *labels]))
        for start in range(0, self.count_rows(names), rows):
            arrays = [pa.array(self._values(name, start, rows)) for name in names]
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    def require(self, name: str) -> str:
        """The name of a column that must exist and be readable."""
        problem = self._problems[self._columns[super().require(name)][0]]
        if problem is not None:
            raise file_error(self.path, f"with a tensor {shown(name)} of one value per row", problem)
        return name

    def count_rows(self, names: Sequence[str]) -> int:
        """Number of rows of some columns."""
        members = dict.fromkeys(self._columns[self.require(name)][0] for name in names)
        lengths = {name: len(self._members[name]) for name in members}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{length} in {shown(name)}" for name, length in lengths.items())
            raise file_error(self.path, "with tensors of one length", listed)
        return next(iter(lengths.values()), 0)

    def _values(self, name: str, start: int, rows: int) -> Any:
        member, position = self._columns[name]
        tensor = self._members[member][start : start + rows].detach().resolve_neg()
        column = tensor.reshape(len(tensor), -1)[:, position].contiguous()
        return (column.float() if column.dtype in (torch.float16, torch.bfloat16) else column).numpy()

    def _load(self) -> Tensor | dict[str, Tensor]:
        try:
            content = _loaded(self.path)
        except Exception as error:  # torch raises whatever damaged bytes lead to
            if isinstance(error, pickle.UnpicklingError) and "weights" in str(error).lower():
                raise file_error(
                    self.path, "with tensors alone", f"other objects, which are never loaded; {_SAVE}"
                ) from None
            raise file_error(self.path, "a whole file of torch.save", message_of(error)) from None
        if isinstance(content, Tensor):
            return self._checked("tensor", content)
        if not isinstance(content, dict) or not content:
            got = "an empty dict" if content == {} else f"a {type(content).__name__}"
            raise file_error(self.path, "with one tensor or a dict of tensors", f"{got}; {_SAVE}")
        return {str(name): self._checked(name, value) for name, value in content.items()}

    def _checked(self, name: Any, value: Any) -> Tensor:
        if not isinstance(value, Tensor) or not isinstance(name, str):
            got = f"a {type(value).__name__} under {shown(name)}"
            raise file_error(self.path, "with one tensor or a dict of tensors by name", f"{got}; {_SAVE}")
        if value.layout != torch.strided or value.is_quantized or value.is_nested or value.device.type == "meta":
            raise file_error(self.path, f"with a dense tensor {shown(name)}", f"{value.layout}")
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise file_error(
                self.path,
                f"with all values of {shown(name)}",
                f"shape {tuple(value.shape)} of fewer; use .contiguous()",
            )
        return value

    def _member(self, name: str, tensor: Tensor) -> Member:
        try:
            dtype = np.dtype(str(tensor.dtype).removeprefix("torch.").replace("bfloat16", "float32"))
        except TypeError:  # of 8 bits or fewer
            dtype = np.dtype(np.void)
        shape = tuple(tensor.shape)
        return Member(name, shape, dtype, fortran=False, offset=0, problem=problem_of(shape, dtype))


def _positions(member: Member) -> list[tuple[str, int]]:
    return list(member.columns().items())


def _loaded(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about content that is refused next
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:
            if "mmap" not in str(error):
                raise
            return torch.load(path, map_location="cpu", weights_only=True)  # of an old version of torch
