"""Arrow, in one place: whoever has not installed it reads what to install."""

try:
    import pyarrow as pa
    from pyarrow import compute, csv, parquet
except ImportError:
    raise ImportError("expected pyarrow for fcal.tables; pip install 'fcal[cli]'") from None

__all__ = ["compute", "csv", "pa", "parquet"]
