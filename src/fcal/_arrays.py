"""Arrays as people have them: tensors, NumPy, pandas, polars, Arrow and lists, as tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

MISSING_LABEL = "(none)"  # what a row without a label belongs to


def as_numbers(name: str, values: Any) -> Tensor:
    """Real numbers as a floating-point tensor; missing values become NaN.

    Args:
        name: Of the argument, for error messages.
        values: A tensor, which is returned as it is, or an array, series, column or list of numbers.

    Raises:
        TypeError: These are no numbers.

    Example:
        >>> as_numbers("target", [1, None, 2.5])
        tensor([1.0000,    nan, 2.5000], dtype=torch.float64)
    """
    if isinstance(values, Tensor):
        return values
    if values is None:
        raise TypeError(f"expected `{name}` of numbers, got None")
    array = _array(name, values)
    if array.dtype.kind in "USMmbc":  # texts, times, truth values and complex numbers convert, but are no real numbers
        raise TypeError(f"expected `{name}` of numbers, got {_described(values, array)}")
    try:
        numbers = array.astype(np.float32 if array.dtype == np.float32 else np.float64)  # a copy: it may be read-only
    except (TypeError, ValueError):
        raise TypeError(f"expected `{name}` of numbers, got {_described(values, array)}") from None
    return torch.from_numpy(numbers)


def as_flags(name: str, values: Any) -> Tensor:
    """Truth values as a boolean tensor.

    Example:
        >>> as_flags("valid_mask", [True, False])
        tensor([ True, False])
    """
    if isinstance(values, Tensor):
        return values
    array = _array(name, values)
    if array.dtype != np.bool_:
        raise TypeError(f"expected `{name}` of True and False, got {_described(values, array)}")
    return torch.from_numpy(array.copy())


def as_labels(name: str, values: Any) -> tuple[Tensor, list[str]]:
    """Labels as numbers from 0 on, and the label of each; those of numbers are sorted, others in order of appearance.

    Example:
        >>> as_labels("group", ["b", "a", None, "b"])
        (tensor([0, 1, 2, 0]), ['b', 'a', '(none)'])
        >>> as_labels("group", torch.tensor([7, 3, 7]))
        (tensor([1, 0, 1]), ['3', '7'])
    """
    if isinstance(values, Tensor):
        if values.is_floating_point() or values.is_complex():
            raise TypeError(f"expected `{name}` a tensor of integers, got {values.dtype}")
        known, codes = torch.unique(values, return_inverse=True)
        return codes, [str(value) for value in known.tolist()]
    array = _array(name, values)
    if array.dtype.kind in "iub":
        return as_labels(name, torch.from_numpy(array.astype(np.bool_ if array.dtype.kind == "b" else np.int64)))
    texts = [MISSING_LABEL if _is_missing(value) else str(value) for value in array.ravel().tolist()]
    number = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    codes = torch.tensor([number[text] for text in texts], dtype=torch.long).reshape(array.shape)
    return codes, list(number)


def as_observed(*, target: Any, valid_mask: Any = None, weight: Any = None) -> dict[str, Any]:
    """Targets with what goes beside them, as tensors by name; None stays None, and tensors stay as they are.

    Raises:
        TypeError: A target or weight is no number, or a mask no truth value.
        ValueError: Rows of pandas columns have different labels.

    Example:
        >>> as_observed(target=[1.0, 2.0], valid_mask=[True, False])["valid_mask"]
        tensor([ True, False])
    """
    check_same_index(target=target, valid_mask=valid_mask, weight=weight)
    return {
        "target": as_numbers("target", target),
        "valid_mask": None if valid_mask is None else as_flags("valid_mask", valid_mask),
        "weight": None if weight is None else as_numbers("weight", weight),
    }


def check_same_index(**named: Any) -> None:
    """Refuse pandas columns whose rows have different labels: they are matched by position.

    Raises:
        ValueError: Two of them differ; the message has their names.
    """
    indexed = {
        name: values.index for name, values in named.items() if hasattr(getattr(values, "index", None), "equals")
    }
    for name, index in indexed.items():
        first = next(iter(indexed))
        if not index.equals(indexed[first]):
            raise ValueError(
                f"expected `{first}` and `{name}` with the same index, got different ones; align them, or pass "
                "`.to_numpy()` of each to match rows by position"
            )


def _array(name: str, values: Any) -> Any:
    """As a NumPy array; of objects where a library has its own missing value."""
    convert = getattr(values, "to_numpy", None)
    if convert is None:
        try:
            return np.asarray(values)
        except ValueError:
            raise ValueError(f"expected `{name}` with rows of one length, got a {type(values).__name__}") from None
    array = np.asarray(convert())
    if array.dtype != object:
        return array
    return np.array([None if _is_missing(value) else value for value in array.ravel()], dtype=object).reshape(
        array.shape
    )


def _is_missing(value: Any) -> bool:
    """None, NaN, and pandas' NA and NaT, none of which equals itself."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True  # pandas.NA has no truth value


def _described(values: Any, array: Any) -> str:
    kind = type(values).__name__
    if isinstance(values, Sequence) and not isinstance(values, str) and len(values):
        return f"a {kind} of {type(values[0]).__name__}"
    return f"a {kind} of {array.dtype}"
