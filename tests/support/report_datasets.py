"""Datasets for tests of the report: images by class, texts, sounds, and one whose every text is markup."""

import contextlib
import io
import json
import sys
import tarfile
import wave

import numpy as np
import pyarrow as pa
import pytest

import wdsplit
from made_datasets import converted
from media_files import encoded
from tables import with_class_names

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MARKUP = (
    "<script>window.ran = 1</script>",
    "</script><script>window.ran = 2</script>",
    "<img src=x onerror='window.ran = 3'>",
    "--><!--",
    "]]>\"'><svg onload=window.ran=4>",
    "{{ 7 * 7 }}\u2028\u2029\u202e${alert(1)}\x1b[2J\x00",
    "javascript:alert(1)",
    "datum.x); window.ran = 5; (",
)


def jpeg_bytes(row, label):
    """Return a small image whose colour goes with its class."""
    pixels = np.random.default_rng(row).integers(0, 60, (16, 24, 3)).astype(np.uint8)
    pixels[..., label % 3] += np.uint8(20 * label)
    return encoded(pixels)


def wav_bytes(row):
    file = io.BytesIO()
    with wave.open(file, "wb") as audio:
        audio.setnchannels(1)
        audio.setsampwidth(1)
        audio.setframerate(8000)
        audio.writeframes(bytes((row * number) % 256 for number in range(400)))
    return file.getvalue()


def images(folder, num_rows, *, shuffle, **plan):
    """Convert images that lie sorted by class, as many of each class."""
    labels = [row * len(CLASSES) // num_rows for row in range(num_rows)]
    payloads = [jpeg_bytes(row, label) for row, label in enumerate(labels)]
    table = with_class_names(pa.table({"jpg": payloads, "label": labels}), "label", CLASSES)
    return converted(folder, table, shuffle=shuffle, **plan)


def texts(folder, num_rows):
    """Convert texts without classes, one of them very long; each fifth has no note."""
    rows = [f"text {row} " * (1 + row % 7) for row in range(num_rows)]
    rows[num_rows // 2] = "long " * 4000
    notes = [None if row % 5 == 0 else {"row": row} for row in range(num_rows)]
    return converted(folder, pa.table({"txt": rows, "json": notes}), null="omit", shuffle=True)


def hostile(folder, num_rows=800):
    """Convert rows whose keys, classes and payloads are markup."""
    chosen = [MARKUP[row % len(MARKUP)] for row in range(num_rows)]
    payloads = [text.encode() for text in chosen]
    columns = {
        "name": [f"{text.replace(chr(0), '')}{row}" for row, text in enumerate(chosen)],
        "label": [row % len(MARKUP) for row in range(num_rows)],
        "txt": chosen,
        "json": [json.dumps({text: [text]}) for text in chosen],
        "jpg": payloads,
        "svg": [b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.ran = 6'/>"] * num_rows,
        "wav": payloads,
    }
    table = with_class_names(pa.table(columns), "label", MARKUP)
    mapping = {"cls": "label", **{name: name for name in ("txt", "json", "jpg", "svg", "wav")}}
    return converted(folder, table, key="name", mapping=mapping, shuffle=True)


def sounds(folder, num_rows):
    """Convert sounds, and arrays of which each has another range."""
    arrays = pa.array([[float(row), float(row + 1)] for row in range(num_rows)], pa.list_(pa.float32(), 2))
    return converted(
        folder, pa.table({"wav": [wav_bytes(row) for row in range(num_rows)], "npy": arrays}), shuffle=True
    )


def hostile_tars(folder, num_samples=200):
    """Write a tar of another program, in which keys, names of fields and the name of the tar are markup."""
    folder.mkdir(parents=True)
    path = folder / "<img src=x onerror='window.ran = 7'>.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(num_samples):
            for field in ("<svg onload='window.ran = 8'>", "cls"):
                data = f"<b>{number % 4}</b>".encode()
                info = tarfile.TarInfo(f"<i>{number:04d}.{field}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return [str(path)]


def facts_of(dataset, **options):
    """Return the facts of a report, whose page is not drawn: that takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[wdsplit.report.__module__], "_page", lambda facts: "")
        return wdsplit.report(dataset, **options).facts


@contextlib.contextmanager
def without_libraries(*libraries):
    """Import the modules of the report anew while libraries are missing; afterwards the modules are those of before."""

    def is_affected(name):
        return name.startswith("wdsplit.reporting") or name.split(".")[0] in libraries

    before = {name: module for name, module in sys.modules.items() if is_affected(name)}
    for name in before:
        del sys.modules[name]
    sys.modules.update(dict.fromkeys(libraries))
    try:
        yield
    finally:
        for name in list(filter(is_affected, sys.modules)):
            del sys.modules[name]
        sys.modules.update(before)
