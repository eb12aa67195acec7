import io
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from wdsplit.fields.image_sizes import first_image_field, image_sizes
from wdsplit.shards.manifest import Field

EXIF = Image.Exif()
EXIF[0x0112] = 6  # turned by 90 degrees: the stored size counts
EXIF[0x010E] = "a description"


def encoded(width, height, kind, mode="RGB", **options):
    """Return an image of noise in a format of Pillow's."""
    noise = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(out, kind, **options)
    return out.getvalue()


KINDS = {
    "jpeg": lambda w, h: encoded(w, h, "JPEG"),
    "progressive jpeg": lambda w, h: encoded(w, h, "JPEG", progressive=True),
    "cmyk jpeg": lambda w, h: encoded(w, h, "JPEG", "CMYK", optimize=True),
    "jpeg with exif": lambda w, h: encoded(w, h, "JPEG", exif=EXIF, comment=b"\xff\xd8 \xff\xc0", dpi=(72, 72)),
    "jpeg with a long profile": lambda w, h: encoded(w, h, "JPEG", icc_profile=b"\xff\xc0" * 40_000),
    "png": lambda w, h: encoded(w, h, "PNG", "P"),
    "png with exif": lambda w, h: encoded(w, h, "PNG", exif=EXIF),
    "gif": lambda w, h: encoded(w, h, "GIF", "L"),
    "webp": lambda w, h: encoded(w, h, "WEBP"),
    "lossless webp": lambda w, h: encoded(w, h, "WEBP", lossless=True),
    "webp with exif": lambda w, h: encoded(w, h, "WEBP", exif=EXIF),
    "bmp": lambda w, h: encoded(w, h, "BMP", "L"),
    "tiff": lambda w, h: encoded(w, h, "TIFF"),
    "ppm": lambda w, h: encoded(w, h, "PPM"),
    "pgm": lambda w, h: encoded(w, h, "PPM", "L"),
    "pbm": lambda w, h: encoded(w, h, "PPM", "1"),
}


def found(payloads):
    widths, heights = image_sizes(pa.array(payloads, pa.large_binary()))
    assert (widths.type, heights.type) == (pa.int32(), pa.int32())
    return list(zip(widths.to_pylist(), heights.to_pylist(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_are_those_of_the_images(kind):
    sizes = [(1, 1), (1, 300), (300, 1), (16, 17), (255, 257)]
    payloads = [KINDS[kind](*size) for size in sizes]
    assert found(payloads) == sizes


SMALL = {(kind, size): make(*size) for kind, make in KINDS.items() for size in ((3, 5), (31, 2), (64, 33))}


@given(st.lists(st.sampled_from(list(SMALL)) | st.none() | st.binary(max_size=40), max_size=30), st.integers(0, 3))
def test_images_of_all_formats_are_found_in_one_column(chosen, skipped):
    payloads = [SMALL.get(each, each) if not isinstance(each, bytes) else each for each in chosen]
    expected = [each[1] if isinstance(each, tuple) else (None, None) for each in chosen]
    assert found(payloads) == expected
    column = pa.array(payloads, pa.large_binary())[skipped:]
    assert [size.to_pylist() for size in image_sizes(column)] == [
        [size[at] for size in expected[skipped:]] for at in (0, 1)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_image_has_its_size_or_none(kind):
    whole = SMALL[kind, (64, 33)]
    cuts = [*range(min(len(whole), 200)), *range(200, len(whole), 97)]
    sizes = found([whole[:cut] for cut in cuts])
    assert sizes[0] == (None, None)
    # Pillow takes the first digit of a PBM's height for all of it.
    assert set(sizes) <= {(64, 33), (None, None)} | ({(64, 3)} if kind == "pbm" else set())


def test_other_formats_have_no_sizes_without_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.GifImagePlugin", None)
    assert found([SMALL["gif", (3, 5)], SMALL["webp", (3, 5)]]) == [(None, None), (3, 5)]


@given(st.sampled_from(list(SMALL)), st.lists(st.tuples(st.integers(0, 699), st.integers(0, 255)), max_size=4))
def test_a_damaged_image_never_raises_and_does_not_harm_its_neighbours(chosen, changes):
    damaged = bytearray(SMALL[chosen])
    for place, byte in changes:
        damaged[place % len(damaged)] = byte
    whole = SMALL["png", (3, 5)]
    sizes = found([whole, bytes(damaged), whole])
    assert (sizes[0], sizes[2]) == ((3, 5), (3, 5))


def test_fill_bytes_and_junk_before_a_marker_are_skipped():
    whole = SMALL["jpeg", (31, 2)]
    assert found([whole[:2] + b"\xff\xff\xff" + whole[2:], whole[:20] + b"junk" + whole[20:]]) == [(31, 2)] * 2
    assert found([whole[:20] + bytes(count) + whole[20:] for count in (30, 31, 32, 33, 100, 400)]) == [(31, 2)] * 6
    assert found([whole[:20] + bytes(1000) + whole[20:]]) == [(None, None)]
    assert found([b"\xff\xd8\xff" + b"\xff" * 100_000 + whole[2:]]) == [(None, None)]


def test_a_frame_that_is_cut_by_the_end_of_its_payload_is_not_read_from_the_next():
    whole = SMALL["jpeg", (31, 2)]
    frame = whole.index(b"\xff\xc0")
    assert found([whole[: frame + 8], whole]) == [(None, None), (31, 2)]
    assert found([b"", whole, SMALL["png", (3, 5)][:20], SMALL["png", (3, 5)]]) == [
        (None, None), (31, 2), (None, None), (3, 5)]  # fmt: skip


@pytest.mark.parametrize(
    "fields, expected",
    [
        ([("cls", "integer"), ("seg.png", "bytes"), ("jpg", "bytes")], "seg.png"),
        ([("jpg", "media")], "jpg"),
        ([("jpg", "json"), ("bin", "bytes")], None),
        ([], None),
    ],
)
def test_the_first_field_of_images_counts(fields, expected):
    assert first_image_field([Field(name, "c", encoding, "") for name, encoding in fields]) == expected
