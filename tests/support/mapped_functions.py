"""Functions for `map_samples`, which worker processes import."""

import os
import signal
from pathlib import Path

import numpy as np

COUNTED = "WDSPLIT_TEST_COUNTED"
"""The variable with the file to which `counted` adds a line for each call."""


def values(sample):
    """Return values of all kinds, some of them missing; nothing for each tenth sample."""
    row = sample["cls"]
    if row % 10 == 0:
        return None
    return {
        "score": row / 7,
        "is_odd": bool(row % 2),
        "word": None if row % 3 == 0 else f"größer {row}",
        "latent.npy": np.full((2, row % 4), row, np.float32),
        "boxes": [row] * (row % 5 + 1) if row % 4 else None,
        "more": {"row": row},
        "mask": b"\x89PNG\r\n\x1a\n" + bytes([row]),
        "nothing": None,
    }


def values_of_batch(samples):
    return [values(sample) for sample in samples]


def counted(sample):
    with open(os.environ[COUNTED], "a", encoding="utf-8") as file:
        file.write(f"{sample['cls']}\n")
    return values(sample)


def killed_once(sample):
    """End the process at a sample, as if it ran out of memory; once the file exists, count on."""
    marker = Path(os.environ[COUNTED] + ".killed")
    if sample["cls"] == 60 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return counted(sample)


def raising(sample):
    if sample["cls"] in (50, 57):
        raise ValueError(f"no value for {sample['cls']}")
    return values(sample)


def raising_in_batch(samples):
    return [raising(sample) for sample in samples]


def texts(sample):
    """Return what was joined before, and names of what was read."""
    return {"read": ",".join(sorted(name for name in sample if name[:2] != "__")), "twice": 2 * sample["cls"]}


def upper(name, data):
    """Decode a field `bin`."""
    return data.hex().upper() if name == ".bin" else None


def shown_bin(sample):
    return {"shown": sample["bin"]}
