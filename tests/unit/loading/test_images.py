import dataclasses
import io
import random
import struct
import subprocess
import sys
import zlib

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import torch
from webdataset.autodecode import ImageHandler

from media_files import encoded, odd_images, picture, turned, with_scans
from wdsplit.errors import CorruptDataError, InputError
from wdsplit.loading.stages.crops import random_box
from wdsplit.loading.stages.decoders import decode_sample_stage
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


SIZES = [(375, 500), (500, 375), (224, 224), (1000, 1500), (1793, 224), (448, 449), (100, 80), (1, 1), (7, 900)]


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
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(9))
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
    assert (
        off_by(*(stage(".jpg", data, 7).astype(int) for stage, data in ((one, payload), (other, encoded(upright)))))
        <= 12
    )


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
@pytest.mark.parametrize("kept", [0, 2, 3, 20, 300, 0.5, 0.9, -2, -1])
def test_a_truncated_jpeg_is_an_error_that_names_its_sample(kept, library):
    payload = encoded(picture(375, 500))
    payload = payload[: int(kept * len(payload)) if isinstance(kept, float) else kept]
    with pytest.raises(CorruptDataError, match=r"'jpg' of sample 'a/17', /data/3\.tar"):
        decoded(payload, 224, library=library)


# What comes out


IMAGES_OF = {
    "made smaller": encoded(picture(375, 500)),
    "made larger": encoded(picture(33, 20)),
    "of the size": encoded(picture(50, 70)),
    "cropped to the size": encoded(picture(50, 99)),
    "png": encoded(picture(300, 200), "PNG"),
    "cmyk": encoded(PIL.Image.fromarray(picture(90, 120)).convert("CMYK")),
}


@every_library
@pytest.mark.parametrize("crop", [None, "center"])
@pytest.mark.parametrize("payload", IMAGES_OF.values(), ids=IMAGES_OF)
def test_the_outputs_hold_the_same_pixels(library, crop, payload):
    tensor, array, image = (
        resized((50, 70), crop=crop, library=library, output=output)(".jpg", payload)
        for output in ("torch", "numpy", "pil")
    )
    assert (tensor.dtype, tuple(tensor.shape)) == (torch.uint8, (3, 50, 70))
    assert (array.dtype, array.shape) == (np.uint8, (50, 70, 3))
    assert (image.mode, image.size) == ("RGB", (70, 50))
    assert (tensor.permute(1, 2, 0).numpy() == array).all()
    assert (np.asarray(image) == array).all()
    assert array.flags.c_contiguous
    array[:], tensor[:] = 0, 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"size": 0}, "size = 0"),
        ({"size": True}, "size = True"),
        ({"size": (3, 4, 5)}, "size = "),
        ({"size": (3, -4)}, "size = "),
        ({"size": 2.0}, "size = 2.0"),
        ({"size": 3, "crop": "left"}, "crop = 'left'"),
        ({"size": 3, "library": "cv2"}, "library = 'cv2'"),
        ({"size": 3, "output": "jax"}, "output = 'jax'"),
        ({"size": 3, "flip": 0.5}, "flip = 0.5"),
        ({"size": 3, "crop": "random", "scale": (0.5, 0.1)}, r"scale = \(0.5, 0.1\)"),
        ({"size": 3, "crop": "random", "scale": (0.5, 1.5)}, "up to 1"),
        ({"size": 3, "crop": "random", "ratio": (0, 1)}, r"ratio = \(0, 1\)"),
        ({"size": 3, "crop": "random", "ratio": 1}, "ratio = 1"),
        ({"size": 3, "crop": "center", "scale": (0.5, 1.0)}, "only with crop='random'"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments, named):
    with pytest.raises(InputError, match=named.replace(".", r"\.")):
        resized(**arguments)


@pytest.mark.parametrize("spec", ["pil", "rgb8", "torchrgb8", "torch", "l", "pilrgba"])
def test_a_named_decoder_is_webdatasets(spec):
    payload = encoded(picture(5, 6), "PNG")
    found = decode_sample_stage(spec).sample({"png": payload})["png"]
    expected = ImageHandler(spec)(".png", payload)
    assert type(found) is type(expected)
    assert np.array_equal(np.asarray(found), np.asarray(expected))


# Chance and columns


def random_part(seed, height, width):
    """Return the part that a seed takes of an image, and whether it is mirrored."""
    draw = random.Random(seed).random
    is_flipped = draw() < 0.5
    return random_box(height, width, (0.08, 1.0), (3 / 4, 4 / 3), draw), is_flipped


@every_library
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize(("height", "width"), [(375, 500), (1500, 1000), (60, 90)])
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
def test_a_column_is_decoded_into_one_piece_of_memory_and_holds_what_its_rows_do(options, output, library):
    decoder = resized((50, 70), output=output, library=library, **options)
    stage = decode_sample_stage(decoder)
    draws = Draws(IMAGES, 3, 0, 2) if options.get("flip") else None
    stage = dataclasses.replace(stage, draws=draws)
    payloads, positions = [*IMAGES_OF.values()], np.arange(5, 5 + len(IMAGES_OF))
    found = stage.columns({"__position__": positions, "jpg": payloads})["jpg"]
    rows = [
        stage.sample({"__position__": position, "jpg": payload})["jpg"]
        for position, payload in zip(positions.tolist(), payloads, strict=True)
    ]
    assert isinstance(found, {"torch": torch.Tensor, "numpy": np.ndarray, "pil": list}[output])
    assert output == "pil" or found.shape == (len(rows), *rows[0].shape)
    for image, row in zip(found, rows, strict=True):
        assert np.array_equal(np.asarray(image), np.asarray(row))


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


@pytest.mark.parametrize("spec", ["rgb8", "l8", "rgba8", "pil"])
@pytest.mark.parametrize("image", PNGS.values(), ids=PNGS)
def test_a_png_has_the_pixels_that_pillow_finds(image, spec):
    transparent = {"transparency": (0, 0, 90) if image.mode == "RGB" else 0} if "A" not in image.mode else {}
    for options in ({}, {"dpi": (300, 300)}, transparent):
        payload = encoded(image, "PNG", **options)
        found = decode_sample_stage(spec).sample({"png": payload})["png"]
        assert np.array_equal(np.asarray(found), np.asarray(ImageHandler(spec)(".png", payload)))


@pytest.mark.parametrize("damage", ["cut", "bit", "no pixels", "height", "no height"])
def test_a_damaged_png_is_an_error(damage):
    payload = bytearray(encoded(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8), "PNG"))
    if damage == "cut":
        del payload[len(payload) // 2 :]
    elif damage == "bit":
        payload[43] ^= 0xFF
    elif damage == "height":
        payload[23] = 8
    elif damage == "no height":
        payload[20:24] = bytes(4)
        payload[29:33] = zlib.crc32(payload[12:29]).to_bytes(4, "big")
    else:
        payload[41:-16] = b""
        payload[33:37] = bytes(4)
    for decoder in ("rgb8", resized(32)):
        with pytest.raises(CorruptDataError, match="'png' of sample 'k'"):
            decode_sample_stage(decoder).sample({"__key__": "k", "png": bytes(payload)})


# Strangers


def png_bomb(height, width):
    """Return a PNG that claims a size and has no pixels."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", b""), (b"IEND", b"")]
    parts = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    ]
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


def test_a_library_that_is_missing_is_named_with_its_remedy():
    code = """
import sys
sys.modules["simplejpeg"] = None
from wdsplit.loading.stages.decoders import decode_sample_stage
from wdsplit.loading.stages.images import resized
try:
    decode_sample_stage(resized(8)).sample({"__key__": "k", "jpg": b"\\xff\\xd8\\xff"})
except ImportError as error:
    print(type(error).__name__, str(error))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("MissingDependencyError simplejpeg is not installed")
    assert "sample 'k'" in said
    assert "wdsplit[images]" in said


@every_library
def test_16_bits_are_scaled_and_32_bits_refused(library):
    images = odd_images()
    for name in ("deep.png", "deep.tiff", "deep.pgm"):
        assert (
            off_by(decoded(images[name], (40, 60), library=library)[..., 1], picture(40, 60)[..., 0].astype(int)) == 0
        )
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
