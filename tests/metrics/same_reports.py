"""Whether two reports say the same."""

from numpy.testing import assert_allclose

UNORDERED = ("groups", "reason")


def assert_same(one, two, *, rtol=1e-10, but=()):
    """All numbers of two reports agree, to rounding; words and whole numbers exactly."""
    first, second = (flat(_document(report, but)) for report in (one, two))
    assert first.keys() == second.keys()
    for name, value in first.items():
        if isinstance(value, float) and isinstance(second[name], float):
            assert_allclose(second[name], value, rtol=rtol, atol=1e-11, err_msg=name)
        else:
            assert second[name] == value, name


def _document(report, but):
    document = report.as_dict(curves=True)
    for name in ("sample", "worst"):  # single rows, which a streaming metric does not keep
        document.get("curves", {}).pop(name, None)
    return {name: value for name, value in document.items() if name not in (*UNORDERED, *but)}


def flat(value, name=""):
    """Nested dictionaries and lists as one dictionary, its keys joined by dots."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return {name: value}
    return {k: v for key, item in items for k, v in flat(item, f"{name}.{key}").items()}
