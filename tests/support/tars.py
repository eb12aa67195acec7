"""Small archives for the tests, as wdsplit writes them, and as others do."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from wdsplit.tar.members import build_body, trailer_bytes

SIZES = (0, 1, 511, 512, 513, 1024, 1500)
FIELDS = ("jpg", "cls", "seg.png", "json")


@dataclass(frozen=True)
class Archive:
    """A tar, the offsets of its samples, and the names and payloads that went in, sample by sample."""

    data: bytes
    offsets: np.ndarray
    samples: list[list[tuple[str, bytes]]]

    def _repr_pretty_(self, printer, cycle):
        """Print names and sizes where hypothesis would print all bytes."""
        printer.text(f"Archive({[[(name, len(data)) for name, data in sample] for sample in self.samples]})")

    @property
    def members(self) -> list[tuple[str, bytes]]:
        return [member for sample in self.samples for member in sample]


def binary(values):
    return pa.array(values, pa.large_binary())


def archive(keys: list[str], fields: dict[str, list[bytes | None]]) -> Archive:
    body = build_body(pa.array(keys, pa.string()), {name: binary(values) for name, values in fields.items()})
    data = bytes(body.join())
    samples = [
        [(f"{key}.{name}", values[row]) for name, values in fields.items() if values[row] is not None]
        for row, key in enumerate(keys)
    ]
    offsets = np.concatenate([[0], np.cumsum(body.sample_bytes)])
    return Archive(data + bytes(trailer_bytes(len(data))), offsets, samples)


def payload(row: int, column: int, size: int) -> bytes:
    return bytes((row * 31 + column * 7 + i) % 256 for i in range(size))


@st.composite
def archives(draw, min_samples=0, max_samples=5):
    names = draw(st.lists(st.sampled_from(FIELDS), min_size=1, unique=True))
    sizes = st.lists(st.sampled_from((None, *SIZES)), min_size=len(names), max_size=len(names))
    rows = draw(
        st.lists(
            sizes.filter(lambda row: any(size is not None for size in row)), min_size=min_samples, max_size=max_samples
        )
    )
    fields = {
        name: [None if row[column] is None else payload(number, column, row[column]) for number, row in enumerate(rows)]
        for column, name in enumerate(names)
    }
    return archive([f"dir/key_{number:03d}" for number in range(len(rows))], fields)


# Archives of others


def by_tarfile(members, format=tarfile.PAX_FORMAT, **attributes):
    """Return the tar that Python writes of names and payloads."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(data), 0o644, 0
            for attribute, value in attributes.items():
                setattr(info, attribute, value)
            tar.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def read_by_tarfile(data):
    """Return names and payloads of the files of a tar, as Python reads them."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        return [(info.name, tar.extractfile(info).read()) for info in tar if info.isreg()]


def gnu_tar(*arguments, cwd):
    program = shutil.which("tar")
    assert program, "GNU tar is needed: apt-get install tar"
    done = subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def without_devices(data):
    """Blank the device numbers of all headers, and the checksums, which count them.

    Python's tarfile leaves the device numbers of a plain file blank; POSIX and GNU tar write zeros, as we do.
    """
    data, position = bytearray(data), 0
    while data[position : position + 512] != bytes(512):
        assert data[position + 329 : position + 345] in (bytes(16), b"0000000\0" * 2)
        size = int(data[position + 124 : position + 135], 8)
        for first, stop in ((148, 156), (329, 345)):
            data[position + first : position + stop] = bytes(stop - first)
        position += 512 + size + -size % 512
    return bytes(data)
