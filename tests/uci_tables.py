"""Where UCI tables are, and made-up ones for tests that need no data."""

import os
from pathlib import Path

import numpy as np

DATA = Path(os.environ.get("FCAL_DATA", Path(__file__).parents[1] / "../shared/data"))  # where the real ones may be
ROWS = 60


def write_table(folder, name="yacht", *, rows=ROWS, splits=2, features=2, seed=0):
    """A table with a constant feature and heteroscedastic noise, in the files that the real ones have."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(size=(rows, features)), np.full(rows, 7.0)])
    y = 3 * x[:, 0] + rng.normal(size=rows) * (0.3 + np.abs(x[:, 1])) + 10
    place = folder / name / "data"
    place.mkdir(parents=True)
    np.savetxt(place / "data.txt", np.column_stack([x, y]))
    np.savetxt(place / "index_features.txt", np.arange(features + 1), fmt="%d")
    np.savetxt(place / "index_target.txt", [features + 1], fmt="%d")
    np.savetxt(place / "n_splits.txt", [splits], fmt="%d")
    for number in range(splits):
        order = rng.permutation(rows)
        np.savetxt(place / f"index_train_{number}.txt", order[rows // 10 :], fmt="%.18e")
        np.savetxt(place / f"index_test_{number}.txt", order[: rows // 10], fmt="%.18e")
    return folder
