"""Images: decoded no larger than needed, and refused by their headers if they are decompression bombs.

The libraries that decode images are optional, and imported when used. The scale at which a JPEG is decoded depends only
on its size, the part that is used and the target size. An EXIF orientation is applied only with `exif=True`, as
webdataset, Pillow and torchvision do not apply it either.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from webdataset.autodecode import IMAGE_EXTENSIONS, imagespecs

from wdsplit.errors import InputError, PipelineError
from wdsplit.fields.image_sizes import IMAGE_EXTENSIONS as COMMON_EXTENSIONS
from wdsplit.loading.stages.crops import Box, middle_box, random_box
from wdsplit.loading.stages.image_files import (
    IMAGE_FORMATS,
    JPEG_MAGIC,
    check_pixels,
    check_scans,
    eight_bits,
    imported,
    open_image,
    orientation_of,
    pixels_of,
    upright,
)

__all__ = [
    "Crop",
    "ImageField",
    "Library",
    "Output",
    "Resized",
    "extension_of",
    "jpeg_header",
    "jpeg_pixels",
    "resized",
]

Crop = Literal["center", "random"]
Library = Literal["simplejpeg", "pillow"]
Output = Literal["torch", "numpy", "pil"]

_IMAGE_EXTENSIONS = frozenset(IMAGE_EXTENSIONS)

_LEAST_SCALE = 2
"""JPEG is decoded whole or at four, three, two or one eighth: at five to seven eighths it costs more than whole."""

_FIRST_SWAPPED = 5
"""EXIF's orientations from this one on swap height and width."""

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
"""The defaults of torchvision's `RandomResizedCrop`."""

Pixels = npt.NDArray[np.uint8]
Draw = Callable[[], float]
"""Gives random numbers from 0 up to 1."""


def extension_of(key: str) -> str:
    """Return what follows the last dot of a field's name."""
    return key.rpartition(".")[2]


@dataclass(frozen=True)
class ImageField:
    """Decodes images as webdataset's handler of the same name does, unless their headers say that they are too large.

    Attributes:
        spec: The output: `pil`, `rgb8`, `torchrgb8` and the others that webdataset has.
        exif: Whether to apply an EXIF orientation.
    """

    spec: str
    exif: bool = False

    def __post_init__(self) -> None:
        if self.spec not in imagespecs:
            expected = f"a function or one of {', '.join(imagespecs)}"
            raise InputError("unknown decoder", expected=expected, found=repr(self.spec))

    def takes(self, key: str) -> bool:
        """Tell by its name whether a field is an image."""
        return extension_of(key).lower() in _IMAGE_EXTENSIONS

    def __call__(self, key: str, data: bytes) -> Any:
        """Return the image, or None if the field is none."""
        if not self.takes(key):
            return None
        kind, dtype, mode = imagespecs[self.spec]
        image = open_image(data)
        orientation = orientation_of(image) if self.exif else 1
        if kind == "pil" and orientation == 1:
            return eight_bits(image).convert(mode.upper())
        pixels: npt.NDArray[Any] = upright(pixels_of(image, mode.upper()), orientation)
        if kind == "pil":
            return imported("PIL.Image").fromarray(pixels)
        if dtype == "float":
            pixels = pixels.astype(np.float32) / 255
        if kind == "numpy":
            return pixels
        planes = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels
        return imported("torch").from_numpy(planes.copy())


@dataclass(frozen=True)
class Resized:
    """Decodes images of the common formats to one size; made by `resized`.

    With the same seed, an image has the same crop and flip wherever it is decoded.
    """

    height: int
    width: int
    crop: Crop | None
    flip: bool
    scale: tuple[float, float]
    ratio: tuple[float, float]
    library: Library
    output: Output
    exif: bool = False

    @property
    def draws(self) -> bool:
        """Whether the crop or the flip is random."""
        return self.flip or self.crop == "random"

    def takes(self, key: str) -> bool:
        """Tell by its name whether a field is an image of a common format."""
        return extension_of(key).lower() in COMMON_EXTENSIONS

    def __call__(self, key: str, data: bytes, seed: int | None = None) -> Any:
        """Return the image, or None if the field is none of a common format; `seed` is needed if `draws`."""
        if not self.takes(key):
            return None
        pixels = self._memory()
        self._decode(data, seed, pixels)
        if self.output == "pil":
            return imported("PIL.Image").fromarray(pixels)
        return self._delivered(pixels)

    def column(self, values: Sequence[bytes], seeds: Iterable[int | None]) -> Any:
        """Return all images of a column in one tensor or array, into which each is decoded; None for Pillow's images.

        Args:
            values: The bytes of n images.
            seeds: A seed for each, None if nothing is drawn.
        """
        if self.output == "pil":
            return None
        pixels = self._memory(len(values))
        for out, data, seed in zip(pixels, values, seeds, strict=False):
            self._decode(data, seed, out)
        return self._delivered(pixels)

    def _memory(self, *count: int) -> Pixels:
        """Return memory for one image, or for `count` images."""
        shape = (3, self.height, self.width) if self.output == "torch" else (self.height, self.width, 3)
        return np.empty((*count, *shape), np.uint8)

    def _delivered(self, pixels: Pixels) -> Any:
        return imported("torch").from_numpy(pixels) if self.output == "torch" else pixels

    def _decode(self, data: bytes, seed: int | None, out: Pixels) -> None:
        """Decode an image into memory of the shape of the output."""
        draw, is_flipped = _no_chance, False
        if self.draws:
            if seed is None:
                raise PipelineError(
                    "there is no seed for a random crop or flip",
                    expected="a sample of a wdsplit.Dataset, decoded by Dataset.decode",
                    remedy="elsewhere use resized without flip=True and crop='random', and add transforms of your own",
                )
            draw = random.Random(seed).random
            is_flipped = draw() < 0.5 and self.flip
        if self.library == "simplejpeg" and data.startswith(JPEG_MAGIC):
            pixels = self._by_simplejpeg(data, draw)
        elif self.library == "pillow":
            pixels = self._by_pillow(data, draw)
        else:
            image = open_image(data, IMAGE_FORMATS)
            pixels = upright(pixels_of(image, "RGB"), self._orientation(image))
            size = pixels.shape[0], pixels.shape[1]
            pixels = self._resampled(pixels, self._part(self._planned(*size, draw)[0], size, size))
        if is_flipped:
            pixels = pixels[:, ::-1]
        planes = out if self.output == "torch" else out.transpose(2, 0, 1)
        planes[:] = pixels.transpose(2, 0, 1)

    def _orientation(self, image: Any) -> int:
        return orientation_of(image) if self.exif else 1

    def _by_simplejpeg(self, data: bytes, draw: Draw) -> Pixels:
        found = jpeg_header(data)
        if found is None:
            return self._by_pillow(data, draw)
        orientation = self._orientation(open_image(data, ("JPEG",))) if self.exif else 1
        height, width = _turned(found, orientation)
        box, *least = self._planned(height, width, draw)
        pixels = upright(jpeg_pixels(data, *_turned(least, orientation)), orientation)
        return self._resampled(pixels, self._part(box, (height, width), (pixels.shape[0], pixels.shape[1])))

    def _by_pillow(self, data: bytes, draw: Draw) -> Pixels:
        image = open_image(data, IMAGE_FORMATS)
        orientation = self._orientation(image)
        size = _turned((image.height, image.width), orientation)
        box, *least = self._planned(*size, draw)
        min_height, min_width = _turned(least, orientation)
        image.draft(None, (min_width, min_height))
        image.load()
        image = eight_bits(image).convert("RGB")
        if orientation != 1:
            image = imported("PIL.Image").fromarray(upright(np.asarray(image), orientation))
        top, left, height, width = self._part(box, size, (image.height, image.width))
        image = image.resize(
            (self.width, self.height),
            imported("PIL.Image").Resampling.BILINEAR,
            box=(left, top, left + width, top + height),
            reducing_gap=2.0,
        )
        return np.asarray(image)

    def _resampled(self, pixels: Pixels, box: Box) -> Pixels:
        """Return a part of an image in the target size: uint8 of shape (height, width, 3).

        torch's kernel is Pillow's method in vector instructions, and lets other threads run. It uses one thread if its
        memory is contiguous: more would keep other ranks' processors busy waiting. Images with channels last stay so,
        and copying their planes is faster than having torch make planes.
        """
        part = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
        if part.shape[:2] == (self.height, self.width):
            return part
        batch = imported("torch").from_numpy(np.require(part, requirements=("C", "W")))[None].permute(0, 3, 1, 2)
        interpolate = imported("torch.nn.functional").interpolate
        resampled = interpolate(batch, (self.height, self.width), mode="bilinear", antialias=True)[0]
        found: Pixels = resampled.permute(1, 2, 0).numpy()
        return found

    def _planned(self, height: int, width: int, draw: Draw) -> tuple[Box | None, int, int]:
        """Return the random part of an image, if any, and the height and width that suffice for decoding."""
        if self.crop != "random":
            return None, self.height, self.width
        box = random_box(height, width, self.scale, self.ratio, draw)
        return box, -(-self.height * height // box.height), -(-self.width * width // box.width)

    def _part(self, box: Box | None, size: tuple[int, int], decoded: tuple[int, int]) -> Box:
        """Return the part to use of an image that was decoded at another size."""
        if box is not None:
            return box.scaled(size, decoded)
        return middle_box(*decoded, (self.height, self.width)) if self.crop else Box(0, 0, *decoded)


def resized(
    size: int | tuple[int, int],
    *,
    crop: Crop | None = None,
    flip: bool = False,
    scale: tuple[float, float] = SCALE,
    ratio: tuple[float, float] = RATIO,
    library: Library = "simplejpeg",
    output: Output = "torch",
    exif: bool = False,
) -> Resized:
    """Return a decoder of images to one size, for `Dataset.decode`: JPEG, PNG, WebP, GIF, BMP, TIFF, PPM and PGM.

        train = wdsplit.Dataset("data/train").decode(wdsplit.resized(224, crop="random", flip=True))
        test = wdsplit.Dataset("data/test").decode(wdsplit.resized(224, crop="center"))

    A JPEG is decoded at a reduced scale if the cropped part is then still at least as large as `size`: 1/8, 1/4, 3/8
    or 1/2 (`pillow` has no 3/8). Then it is resized (bilinear, antialiased). Smaller images are enlarged. The result is
    always RGB: grey is repeated, transparency dropped, CMYK converted. Of 16 bits the upper eight are used, of an
    animation the first image. Results are deterministic for one library. `wdsplit.verify(decode=True)` finds the images
    that cannot be decoded.

    Random crops and flips are drawn as in `Dataset.map_random`: the same on any number of ranks and after a resume,
    different in each epoch. All images of a sample get the same crop and flip.

    A `Loader` decodes each image directly into the tensor of its batch, if no stages but `rename` and `to_tuple` come
    after it.

    Args:
        size: Height and width in pixels, or one number for both.
        crop: None squeezes the whole image into the size; `center` uses the largest centred part with the proportions
            of `size`; `random` uses a random part, as torchvision's `RandomResizedCrop` does.
        flip: Mirror half of the images, at random.
        scale: For `random`: smallest and largest share of the image's area.
        ratio: For `random`: smallest and largest width / height of the part, before it is resized.
        library: `simplejpeg` decodes JPEG (fastest; refuses any file that libjpeg warns about) and torch resizes; or
            `pillow` does both. Their results differ by rounding, so there is no automatic fallback.
        output: `torch`: a uint8 tensor of shape (3, height, width); `numpy`: uint8 of shape (height, width, 3);
            `pil`: a PIL image.
        exif: Turn images upright as their EXIF orientation says, as viewers do; by default they are as stored.

    Raises:
        InputError: An argument is invalid.
    """
    height, width = size if isinstance(size, tuple) and len(size) == 2 else (size, size)
    problems = []
    if not all(isinstance(side, int) and not isinstance(side, bool) and side >= 1 for side in (height, width)):
        problems.append(f"size = {size!r}: expected one or two integers of at least 1")
    for name, value, known in (
        ("crop", crop, (None, *get_args(Crop))),
        ("flip", flip, (False, True)),
        ("exif", exif, (False, True)),
        ("library", library, get_args(Library)),
        ("output", output, get_args(Output)),
    ):
        if value not in known:
            problems.append(f"{name} = {value!r}: expected one of {', '.join(map(repr, known))}")
    problems += _wrong_ranges(crop, {"scale": (scale, SCALE, 1.0), "ratio": (ratio, RATIO, math.inf)})
    if problems:
        raise InputError("invalid arguments of resized", found="; ".join(problems))
    return Resized(height, width, crop, flip, (scale[0], scale[1]), (ratio[0], ratio[1]), library, output, exif)


def _wrong_ranges(crop: Crop | None, ranges: Mapping[str, tuple[Any, tuple[float, float], float]]) -> Iterator[str]:
    """Say what is wrong with ranges, each given with its default and its greatest value."""
    for name, (value, default, largest) in ranges.items():
        is_pair = isinstance(value, (tuple, list)) and len(value) == 2
        if not is_pair or not all(isinstance(bound, Real) for bound in value):
            yield f"{name} = {value!r}: expected two numbers"
        elif not 0 < value[0] <= value[1] <= largest or value[1] == math.inf:
            up_to = f" up to {largest:g}" if largest < math.inf else ""
            yield f"{name} = {value!r}: expected two rising numbers above 0{up_to}"
        elif crop != "random" and tuple(value) != default:
            yield f"{name} = {value!r}: works only with crop='random'"


def jpeg_header(data: bytes) -> tuple[int, int] | None:
    """Return the height and width of a JPEG that `jpeg_pixels` decodes; None if Pillow has to, for its colours.

    Raises:
        InputError: It has too many pixels or scans.
    """
    check_scans(data)
    height, width, colorspace, _ = imported("simplejpeg").decode_jpeg_header(data)
    check_pixels(width, height)
    return None if colorspace in ("CMYK", "YCCK") else (height, width)


def jpeg_pixels(data: bytes, min_height: int, min_width: int) -> Pixels:
    """Decode a JPEG at the smallest scale that has at least this height and width; (height, width, 3)."""
    pixels: Pixels = imported("simplejpeg").decode_jpeg(
        data, "RGB", min_height=min_height, min_width=min_width, min_factor=_LEAST_SCALE
    )
    return pixels


def _turned(size: Sequence[int], orientation: int) -> tuple[int, int]:
    """Return height and width, in the other order if an orientation swaps them."""
    height, width = size
    return (width, height) if orientation >= _FIRST_SWAPPED else (height, width)


def _no_chance() -> float:
    raise AssertionError("nothing is drawn")
