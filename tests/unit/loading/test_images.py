import dataclasses
import functools
import io
import random
import struct
import sys
import zlib

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import torch
from webdataset.autodecode import ImageHandler

from media_files import encoded, odd_images, picture, turned, with_scans
from wdsplit.errors import CorruptDataError, InputError, MissingDependencyError
from wdsplit.loading.stages import image_files
from wdsplit.loading.stages.crops import random_box
from wdsplit.loading.stages.decoders import decode_sample_stage
from wdsplit.loading.stages.image_files import imported, plain_pixels
from wdsplit.loading.stages.images import resized
from wdsplit.loading.stages.randomness import IMAGES, Draws

LIBRARIES = ["simplejpeg", "pillow"]
every_library = pytest.mark.parametrize("library", LIBRARIES)


def decoded(payload, size, name="jpg", **options):
    """Return the pixels that a stage makes of a payload: int64 of shape (height, width, 3)."""
    stage = decode_sample_stage(resized(size, output="numpy", **options))
    pixels = stage.sample({"__key__": "a/17", "__url__": "/data/3.tar", name: payload})[name]
    assert pixels.dtype == np.uint8
    return pixels.astype(np.int64)


def off_by(one, other):
    """Return by how much two pictures differ at most."""
    assert one.shape == other.shape
    return np.abs(one - other).max()


SIZES = [(375, 500), (224, 224), (1793, 224), (448, 449), (1, 1), (7, 900)]


@every_library
@pytest.mark.parametrize("crop", [None, "center"])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_a_jpeg_comes_at_the_size_and_looks_as_resized_from_the_whole(height, width, crop, library):
    payload = encoded(picture(height, width))
    found = decoded(payload, (224, 160), crop=crop, library=library)
    whole = PIL.Image.open(io.BytesIO(payload)).convert("RGB")
    box = None
    if crop:
        scale = min(height / 224, width / 160)
        top, left = (height - 224 * scale) / 2, (width - 160 * scale) / 2
        box = (left, top, left + 160 * scale, top + 224 * scale)
    expected = np.array(whole.resize((160, 224), PIL.Image.Resampling.BILINEAR, box=box)).astype(np.int64)
    assert np.abs(found - expected).mean() < 1.5
    assert off_by(found, expected) <= (40 if min(height, width) < 10 else 8)


@every_library
def test_grey_cmyk_and_transparent_images_come_as_rgb(library):
    image = PIL.Image.fromarray(picture(90, 120))
    grey = decoded(encoded(image.convert("L")), 60, library=library)
    assert (grey[..., 0] == grey[..., 1]).all()
    assert off_by(grey[..., 0], np.array(image.convert("L").resize((60, 60))).astype(np.int64)) <= 8
    cmyk = encoded(image.convert("CMYK"))
    assert off_by(decoded(cmyk, 60, library=library), decoded(encoded(image), 60, library=library)) <= 10
    assert off_by(decoded(cmyk, 60, library=library), decoded(cmyk, 60, library="pillow")) == 0
    clear = image.copy()
    clear.putalpha(0)
    opaque = decoded(encoded(image, "PNG"), 60, library=library)
    assert off_by(decoded(encoded(clear, "PNG"), 60, "png", library=library), opaque) == 0


@every_library
@pytest.mark.parametrize(
    ("orientation", "kind"), [*((number, "JPEG") for number in (0, 2, 3, 5, 8)), (6, "PNG"), (8, "WEBP")]
)
def test_an_exif_orientation_is_applied_only_on_request(orientation, kind, library):
    """Pillow's own function says what is upright."""
    payload = turned(orientation, kind, 300, 200)
    stored = PIL.Image.open(io.BytesIO(payload)).convert("RGB")
    upright = PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(payload))).convert("RGB")
    for exif, image in ((False, stored), (True, upright)):
        found = decode_sample_stage("pil", exif=exif).sample({"jpg": payload})["jpg"]
        assert found.size == image.size and found.tobytes() == image.tobytes()
        assert (decode_sample_stage("rgb8", exif=exif).sample({"jpg": payload})["jpg"] == np.array(image)).all()
        for size, crop in (((48, 40), None), ((40, 90), "center")):
            again = decoded(encoded(image, "PNG"), size, crop=crop, library=library)
            assert off_by(decoded(payload, size, crop=crop, library=library, exif=exif), again) <= 12
    seeds = {"crop": "random", "flip": True, "library": library, "output": "numpy"}
    one, other = resized((30, 50), exif=True, **seeds), resized((30, 50), **seeds)
    assert off_by(one(".jpg", payload, 7).astype(int), other(".jpg", encoded(upright), 7).astype(int)) <= 12


@every_library
def test_an_image_that_is_turned_is_decoded_as_large_as_it_is_needed(library):
    """At half its size no stripe would be left."""
    stripes = np.zeros((640, 160, 3), np.uint8)
    stripes[:, 1::2] = 255
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    payload = encoded(stripes, exif=exif)
    assert decoded(payload, (160, 80), library=library, exif=True).std() > 100


@every_library
@pytest.mark.parametrize("kept", [0, 3, 300, 0.5, -1])
def test_a_truncated_jpeg_is_an_error_that_names_its_sample(kept, library):
    payload = encoded(picture(375, 500))
    payload = payload[: int(kept * len(payload)) if isinstance(kept, float) else kept]
    with pytest.raises(CorruptDataError, match=r"'jpg' of sample 'a/17', /data/3\.tar"):
        decoded(payload, 224, library=library)


IMAGES_OF = {
    "made smaller": encoded(picture(375, 500)),
    "made larger": encoded(picture(33, 20)),
    "of the size": encoded(picture(50, 70)),
    "cropped to the size": encoded(picture(50, 99)),
    "png": encoded(picture(300, 200), "PNG"),
    "cmyk": encoded(PIL.Image.fromarray(picture(90, 120)).convert("CMYK")),
}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"size": 0}, "size = 0"),
        ({"size": (3, -4)}, "size = "),
        ({"size": 3, "crop": "left"}, "crop = 'left'"),
        ({"size": 3, "library": "cv2"}, "library = 'cv2'"),
        ({"size": 3, "flip": 0.5}, "flip = 0.5"),
        ({"size": 3, "crop": "random", "scale": (0.5, 0.1)}, r"scale = \(0.5, 0.1\)"),
        ({"size": 3, "crop": "random", "ratio": (0, 1)}, r"ratio = \(0, 1\)"),
        ({"size": 3, "crop": "center", "scale": (0.5, 1.0)}, "only with crop='random'"),
        ({"size": 3, "mean": 0.5}, "mean = 0.5: expected three numbers, of red"),
        ({"size": 3, "std": (0.5, 0, 0.5)}, r"std = \(0.5, 0, 0.5\): expected three numbers above 0"),
        ({"size": 3, "dtype": "float64"}, "dtype = 'float64'"),
        ({"size": 3, "dtype": "uint8", "std": (1, 1, 1)}, "of floating point with mean or std"),
        ({"size": 3, "dtype": "bfloat16", "output": "numpy"}, "output='numpy' can have"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments, named):
    with pytest.raises(InputError, match=named.replace(".", r"\.")):
        resized(**arguments)


# Chance and columns


def random_part(seed, height, width):
    """Return the part that a seed takes of an image, and whether it is mirrored."""
    draw = random.Random(seed).random
    is_flipped = draw() < 0.5
    return random_box(height, width, (0.08, 1.0), (3 / 4, 4 / 3), draw), is_flipped


@every_library
@pytest.mark.parametrize(("height", "width", "kind"), [(1500, 1000, "JPEG"), (60, 90, "JPEG"), (600, 400, "PNG")])
def test_a_random_part_looks_as_pillow_cuts_and_resizes_it(height, width, kind, library):
    payload = encoded(picture(height, width), kind)
    whole = PIL.Image.open(io.BytesIO(payload)).convert("RGB")
    mirrored = set()
    for seed in range(12):
        (top, left, rows, columns), is_flipped = random_part(seed, height, width)
        box = (left, top, left + columns, top + rows)
        expected = np.array(whole.resize((70, 50), PIL.Image.Resampling.BILINEAR, box=box)).astype(np.int64)
        found = resized((50, 70), crop="random", flip=True, library=library, output="numpy")(".jpg", payload, seed)
        assert off_by(found.astype(np.int64), expected[:, ::-1] if is_flipped else expected) <= 10
        mirrored.add(is_flipped)
    assert mirrored == {False, True}


@every_library
@pytest.mark.parametrize("output", ["torch", "numpy", "pil"])
@pytest.mark.parametrize("options", [{}, {"crop": "center"}, {"crop": "random", "flip": True}])
def test_a_column_is_decoded_into_one_piece_of_memory_and_holds_what_its_rows_and_other_outputs_do(
    options, output, library
):
    draws = Draws(IMAGES, 3, 0, 2) if options.get("flip") else None
    stage, to_numpy = (
        dataclasses.replace(
            decode_sample_stage(resized((50, 70), output=kind, library=library, **options)), draws=draws
        )
        for kind in (output, "numpy")
    )
    payloads, positions = [*IMAGES_OF.values()], np.arange(5, 5 + len(IMAGES_OF))
    found, arrays = (each.columns({"__position__": positions, "jpg": payloads})["jpg"] for each in (stage, to_numpy))
    assert (arrays.dtype, arrays.shape, arrays.flags.c_contiguous) == (np.uint8, (len(payloads), 50, 70, 3), True)
    if output == "torch":
        assert (found.dtype, found.shape) == (torch.uint8, (len(payloads), 3, 50, 70))
    elif output == "pil":
        assert {(image.mode, image.size) for image in found} == {("RGB", (70, 50))}
    for image, array, position, payload in zip(found, arrays, positions.tolist(), payloads, strict=True):
        row = stage.sample({"__position__": position, "jpg": payload})["jpg"]
        assert type(image) is type(row) and np.array_equal(np.asarray(image), np.asarray(row))
        assert np.array_equal(image.permute(1, 2, 0) if output == "torch" else np.asarray(image), array)
        if output != "pil":
            image[:] = row[:] = 0


@pytest.mark.parametrize("output", ["torch", "numpy"])
@pytest.mark.parametrize(
    ("dtype", "error"), [(None, 1e-6), ("float32", 1e-6), ("float16", 2**-10), ("bfloat16", 2**-7)]
)
@pytest.mark.parametrize("size", [(50, 70), (300, 311), (2, 40_000)])  # in one block, in several, a row longer than one
def test_pixels_are_normalised_as_torchvision_does(size, dtype, error, output):
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    if (dtype, output) == ("bfloat16", "numpy"):
        return
    payloads = [encoded(picture(50, 70), kind) for kind in ("JPEG", "PNG")]
    found = resized(size, mean=mean, std=tuple(std), dtype=dtype, output=output).column(payloads, [None] * 2)
    whole = resized(size, output="numpy").column(payloads, [None] * 2)
    assert str(found.dtype).removeprefix("torch.") == (dtype or "float32")
    images = np.asarray(found.double().permute(0, 2, 3, 1)) if output == "torch" else found.astype(np.float64)
    assert np.allclose(images, (whole / 255 - mean) / std, rtol=error, atol=error)
    unscaled = resized(size, dtype="float32", output="numpy").column(payloads, [None] * 2)
    assert np.allclose(unscaled, whole / 255, atol=1e-6)


PNGS = {
    "rgb": PIL.Image.fromarray(picture(33, 20)),
    "one pixel": PIL.Image.fromarray(picture(1, 1)),
    "grey": PIL.Image.fromarray(picture(33, 20)).convert("L"),
    "alpha": PIL.Image.fromarray(np.dstack([picture(33, 20), picture(33, 20)[..., 0]])),
    "palette": PIL.Image.fromarray(picture(33, 20)).convert("P"),
    "one bit": PIL.Image.fromarray(picture(33, 20)).convert("1"),
    "grey and alpha": PIL.Image.fromarray(picture(33, 20)).convert("LA"),
    "large": PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)),
}


@pytest.fixture(params=["imagecodecs", "pillow alone"])
def codecs(request, monkeypatch):
    """Decode with imagecodecs, and as if it were not installed."""
    if request.param == "pillow alone":
        monkeypatch.setitem(sys.modules, "imagecodecs", None)
        image_files._codecs.cache_clear()
    yield
    image_files._codecs.cache_clear()


@functools.cache
def pngs_and_webps(name):
    """Return an image as files of both formats, with and without what some decoders lack."""
    image = PNGS[name]
    transparent = {"transparency": (0, 0, 90) if image.mode == "RGB" else 0} if "A" not in image.mode else {}
    payloads = [encoded(image, "PNG", **options) for options in ({}, {"dpi": (300, 300)}, transparent)]
    payloads += [encoded(image.convert("RGBA" if "A" in image.mode else "RGB"), "WEBP", quality=q) for q in (10, 100)]
    return [*payloads, encoded(image.convert("RGB"), "WEBP", lossless=True), odd_images()["animated.png"]]


@pytest.mark.parametrize("spec", ["rgb8", "l8", "torch", "pilrgba"])
@pytest.mark.parametrize("name", PNGS)
def test_a_png_or_webp_has_the_pixels_that_pillow_finds_as_webdataset_gives_them(name, spec, codecs):
    for payload in pngs_and_webps(name):
        found = decode_sample_stage(spec).sample({"png": payload})["png"]
        expected = ImageHandler(spec)(".png", payload)
        assert type(found) is type(expected)
        assert np.array_equal(np.asarray(found), np.asarray(expected))


def test_imagecodecs_decodes_plain_pngs_and_webps_and_pillow_the_others(monkeypatch):
    modes = {"RGB": picture(33, 20), "L": picture(33, 20)[..., 0], "RGBA": picture(33, 20).repeat(2, 2)[..., :4]}
    for mode, pixels in modes.items():
        assert np.array_equal(plain_pixels(encoded(pixels, "PNG"), mode), pixels)
    webp, odd = encoded(picture(33, 20), "WEBP"), odd_images()
    assert np.array_equal(plain_pixels(webp, "RGB"), np.asarray(PIL.Image.open(io.BytesIO(webp))))
    others = [b"", webp[:9], webp[:60], encoded(picture(33, 20)), odd["deep.png"], odd["animated.webp"]]
    assert [plain_pixels(payload, "RGB") for payload in (*others, encoded(modes["L"], "PNG"))] == [None] * 7
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 33 * 20 - 1)
    for payload in (webp, encoded(picture(33, 20), "PNG")):
        with pytest.raises(InputError, match="too many pixels"):
            plain_pixels(payload, "RGB")


def crc(data):
    return zlib.crc32(data).to_bytes(4, "big")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:43] + bytes([data[43] ^ 0xFF]) + data[44:],
        lambda data: data[:33] + bytes(4) + data[37:41] + data[-16:],  # no pixels
        lambda data: data[:23] + b"\x08" + data[24:],  # another height, with the checksum of the right one
        lambda data: data[:20] + bytes(4) + data[24:29] + crc(data[12:20] + bytes(4) + data[24:29]) + data[33:],
    ],
)
def test_a_damaged_png_is_an_error(damage):
    payload = damage(encoded(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8), "PNG"))
    for decoder in ("rgb8", resized(32)):
        with pytest.raises(CorruptDataError, match="'png' of sample 'k'"):
            decode_sample_stage(decoder).sample({"__key__": "k", "png": payload})


# Strangers


def png_bomb(height, width):
    """Return a PNG that claims a size and has no pixels."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", b""), (b"IEND", b"")]
    parts = [struct.pack(">I", len(body)) + kind + body + crc(kind + body) for kind, body in chunks]
    return b"".join([b"\x89PNG\r\n\x1a\n", *parts])


def jpeg_bomb(height, width):
    """Return a JPEG whose header claims another size."""
    payload = bytearray(encoded(picture(16, 16)))
    struct.pack_into(">HH", payload, payload.index(b"\xff\xc0") + 5, height, width)
    return bytes(payload)


@pytest.mark.parametrize("decoder", ["pil", "torchrgb8", *LIBRARIES])
@pytest.mark.parametrize(
    "bomb",
    [png_bomb(10_000, 9_000), png_bomb(60_000, 60_000), jpeg_bomb(10_000, 9_000), jpeg_bomb(65_500, 65_500)],
    ids=["png to be warned of", "png", "jpeg to be warned of", "jpeg"],
)
def test_an_image_that_claims_too_many_pixels_is_refused(decoder, bomb):
    handler = resized(8, library=decoder) if decoder in LIBRARIES else decoder
    with pytest.raises(InputError, match=r"(?s)too many pixels.*'jpg' of sample 'k'.*MAX_IMAGE_PIXELS"):
        decode_sample_stage(handler).sample({"__key__": "k", "jpg": bomb})


def test_an_image_that_another_program_would_decode_is_refused():
    payload = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(x) run\n%%EOF\n"
    with pytest.raises(InputError, match="format EPS"):
        decode_sample_stage("pil").sample({"eps": payload})
    with pytest.raises(CorruptDataError, match="unknown format"):
        decode_sample_stage(resized(8)).sample({"jpg": payload})


def test_a_library_that_is_missing_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    imported.cache_clear()
    with pytest.raises(MissingDependencyError, match=r"simplejpeg is not(.|\n)*sample 'k'(.|\n)*wdsplit\[images\]"):
        decode_sample_stage(resized(8)).sample({"__key__": "k", "jpg": b"\xff\xd8\xff"})


@every_library
def test_16_bits_are_scaled_and_32_bits_refused(library):
    images = odd_images()
    for name in ("deep.png", "deep.tiff", "deep.pgm"):
        found = decoded(images[name], (40, 60), library=library)[..., 1]
        assert off_by(found, picture(40, 60)[..., 0].astype(int)) == 0
        assert (decode_sample_stage("l8").sample({"png": images[name]})["png"] == picture(40, 60)[..., 0]).all()
    assert decoded(images["deep colour.png"], (2, 1), library=library)[0, 0].tolist() == [0xFF, 0x80, 0]
    for stage in (decode_sample_stage("pil"), decode_sample_stage(resized(32, library=library))):
        with pytest.raises(InputError, match="32 bits"):
            stage.sample({"tiff": images["float.tiff"]})


@every_library
@pytest.mark.parametrize(
    "name", ["still.gif", "animated.gif", "animated.webp", "animated.png", "pages.tif", "plain.bmp", "a png.jpg"]
)
def test_every_common_format_is_decoded_whatever_the_field_is_called(name, library):
    """Of several images in a file the first one."""
    found = decoded(odd_images()[name], (40, 60), "jpg", library=library)
    assert np.abs(found - picture(40, 60)).mean() < 25
    assert off_by(decoded(odd_images()[name], (40, 60), "gif", library=library), found) == 0


@pytest.mark.parametrize("decoder", ["pil", resized(8), resized(8, library="pillow")])
def test_a_jpeg_with_hundreds_of_scans_is_refused(decoder):
    stage = decode_sample_stage(decoder)
    with pytest.raises(InputError, match=r"too many scans.*\n.*sample 'k'.*\n.*at most 100\n.*found: 300"):
        stage.sample({"__key__": "k", "jpg": with_scans(300)})
    hidden = with_scans(300)
    behind = encoded(picture(40, 60)) + hidden  # as some cameras append previews and films
    preview = encoded(picture(40, 60), progressive=True, comment=hidden[:3000])
    for payload in (with_scans(10), encoded(picture(40, 60), comment=b"\xff\xda" * 200), preview):
        assert stage.sample({"jpg": payload})["jpg"] is not None
    assert decode_sample_stage("pil").sample({"jpg": behind})["jpg"].size == (60, 40)
