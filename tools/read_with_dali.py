"""Read a dataset with the real DALI, by the indexes of `--emit dali`, and compare every sample with the tars.

Needs no GPU, but a large wheel, in an environment of its own: pip install nvidia-dali-cuda120
Run: python tools/read_with_dali.py DATASET
"""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import numpy as np
from nvidia.dali import fn, pipeline_def

PAD_PREFIX = "_pad_/"


def samples_of(shard: Path) -> list[dict[str, bytes]]:
    """Read the fields of a shard's samples with the standard library, pads left out."""
    samples: dict[str, dict[str, bytes]] = {}
    with tarfile.open(shard) as tar:
        for member in tar:
            folder, _, base = member.name.rpartition("/")
            key, _, field = base.partition(".")
            file = tar.extractfile(member)
            if file is not None and not member.name.startswith(PAD_PREFIX):
                samples.setdefault(f"{folder}/{key}", {})[field] = file.read()
    return list(samples.values())


def main(dataset: str) -> None:
    shards = [path for path in sorted(Path(dataset).glob("*.tar")) if path.with_suffix(".idx").exists()]
    expected = [sample for shard in shards for sample in samples_of(shard)]
    fields = sorted({field for sample in expected for field in sample})

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipeline():  # type: ignore[no-untyped-def]
        return tuple(
            fn.readers.webdataset(
                paths=[str(path) for path in shards],
                index_paths=[str(path.with_suffix(".idx")) for path in shards],
                ext=fields,
                name="reader",
            )
        )

    pipe = pipeline()
    pipe.build()
    found = pipe.reader_meta("reader")["epoch_size"]
    if found != len(expected):
        sys.exit(f"DALI has {found} samples, the tars have {len(expected)}")
    for number, sample in enumerate(expected):
        for field, output in zip(fields, pipe.run(), strict=True):
            if np.asarray(output.at(0)).tobytes() != sample.get(field, b""):
                sys.exit(f"sample {number}: {field} is not what the tar holds")
    print(f"{found} samples of {len(shards)} shards are what the tars hold, pads left out; fields {', '.join(fields)}")


if __name__ == "__main__":
    main(sys.argv[1])
