"""Real handwritten digits as a CIFAR-10 data set: python docs/examples/digits.py OUT.

The 1797 digits that come with scikit-learn, 8 x 8 grey values, made 32 x 32 x 3: 1437 to learn from
and 360 to be asked about. A small set on which training has to reach an accuracy.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

HELD_OUT = 360


def main(folder: str) -> None:
    """Writes data_batch_1.bin to 5 and test_batch.bin: per image its label and three planes."""
    digits = load_digits()
    grey = (digits.images * (255 / 16)).astype(np.uint8)
    planes = np.repeat(grey.repeat(4, axis=1).repeat(4, axis=2)[:, None], 3, axis=1)
    labels = digits.target.astype(np.uint8)
    records = np.concatenate([labels[:, None], planes.reshape(len(labels), -1)], axis=1)
    records = np.random.default_rng(7).permutation(records)
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    for i, part in enumerate(np.array_split(records[HELD_OUT:], 5), start=1):
        (out / f"data_batch_{i}.bin").write_bytes(part.tobytes())
    (out / "test_batch.bin").write_bytes(records[:HELD_OUT].tobytes())


if __name__ == "__main__":
    main(sys.argv[1])
