"""The example of docs/examples/weather_plugin.py, and files of its data set."""

from __future__ import annotations

from pathlib import Path

import numpy as np

PLUGIN = str(Path(__file__).parents[2] / "docs" / "examples" / "weather_plugin.py")
FLAGS = {"dataset_plugin": PLUGIN, "data_name": "weather", "model": "forecast"}


def write(folder: Path, train: int, validation: int) -> Path:
    """Writes so many examples per subset, whose hours tell both answers; returns the folder."""
    rng = np.random.default_rng(3)
    for subset, count in (("train", train), ("validation", validation)):
        hours = rng.normal(size=(count, 24, 3)).astype(np.float32)
        np.savez(
            folder / f"{subset}.npz",
            hours=hours,
            station=rng.integers(0, 50, count),
            rain=(hours[:, 0, 1] > 0).astype(np.int64),
            degrees=10 + 8 * hours[:, :, 0].mean(axis=1),
        )
    return folder
