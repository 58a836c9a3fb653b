"""From a column of any type that holds numbers to a tensor."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor
from torch.utils.dlpack import from_dlpack

from fcal.tables.arrow import compute, csv, pa
from fcal.tables.errors import file_error, shown, value_error

MISSING_WORDS = frozenset(csv.ConvertOptions().null_values)  # "", "NA", "NaN", "null", ...


def tensor_of(column: pa.Array, *, path: Path, name: str, before: int, decimal: str = ".") -> Tensor:
    """A column as a tensor: float32 stays, half precision becomes float32, everything else float64.

    Nothing is copied where the column is float32 or float64 without nulls, so the tensor must not be written to.

    Args:
        column: Numbers of any width, decimals, a dictionary of them, or text that spells them. Length N.
        path: The file, for errors.
        name: The column, for errors.
        before: Number of rows of the file that come before these.
        decimal: The decimal point of text.

    Returns:
        Shape ``(N,)``; NaN where the column is null.

    Raises:
        TableError: The type holds no numbers, or a text is none.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if _is_text(kind):
        column = _parsed(column, path=path, name=name, before=before, decimal=decimal)
    elif pa.types.is_float16(kind):
        column = column.cast(pa.float32())
    elif pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        column = column.cast(pa.float64(), safe=False)  # a whole number beyond 2^53 is rounded, as in any float
    elif not pa.types.is_floating(kind):
        raise file_error(path, f"column {shown(name)} of numbers", f"{kind}")
    if column.null_count:
        column = column.fill_null(float("nan"))
    tensor: Tensor = from_dlpack(column)
    return tensor


def numbers_of_text(text: pa.Array, decimal: str = ".", kind: pa.DataType = None) -> pa.Array:
    """Text as numbers, null where it is a word for a missing value; raises Arrow's error where it is neither."""
    trimmed = compute.utf8_trim_whitespace(text)
    missing = compute.is_in(trimmed, value_set=pa.array(sorted(MISSING_WORDS), trimmed.type))
    if decimal != ".":
        trimmed = compute.replace_substring(trimmed, decimal, ".")
    return compute.if_else(missing, None, trimmed).cast(kind or pa.float64())


def first_failure(column: pa.Array, works: Callable[[pa.Array], object]) -> int | None:
    """Index of the first element at which a conversion fails, by bisection; None where it does not."""
    if not _fails(works, column):
        return None
    start, stop = 0, len(column)
    while stop - start > 1:
        middle = (start + stop) // 2
        if _fails(works, column.slice(start, middle - start)):
            stop = middle
        else:
            start = middle
    return start


def _parsed(column: pa.Array, *, path: Path, name: str, before: int, decimal: str) -> pa.Array:
    text = column.cast(pa.large_string()) if not pa.types.is_large_string(column.type) else column
    try:
        return numbers_of_text(text, decimal)
    except pa.ArrowInvalid:
        index = first_failure(text, lambda part: numbers_of_text(part, decimal))
        assert index is not None  # the whole just failed
        value = _readable(text.slice(index, 1))
        raise value_error(path, name, "of numbers", value, before + index + 1) from None


def _readable(text: pa.Array) -> str | bytes:
    value: bytes = text.cast(pa.large_binary())[0].as_py()
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _fails(works: Callable[[pa.Array], object], column: pa.Array) -> bool:
    try:
        works(column)
    except pa.ArrowInvalid:
        return True
    return False


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
