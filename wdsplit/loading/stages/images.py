"""Images: decoded no larger than is asked for, and refused by their headers if they are bombs.

Composition of the libraries that decode images; all are optional and imported when used. Nothing here is random: which
scale a JPEG is decoded at depends on its size and the target's alone. Pixels come as they are stored: an EXIF
orientation is not applied, as webdataset, Pillow and torchvision do not.
"""

from __future__ import annotations

import importlib
import io
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
from webdataset.autodecode import IMAGE_EXTENSIONS, ImageHandler, imagespecs

from wdsplit.errors import InputError, MissingDependencyError

__all__ = ["Crop", "ImageField", "Library", "Output", "Resized", "extension_of", "resized"]

Crop = Literal["center"]
Library = Literal["simplejpeg", "pillow"]
Output = Literal["torch", "numpy", "pil"]

_IMAGE_EXTENSIONS = frozenset(IMAGE_EXTENSIONS)
_RESIZED_FORMATS = ("JPEG", "PNG", "WEBP")
_PROGRAM_FORMATS = frozenset({"EPS", "WMF"})
"""Formats that Pillow leaves to another program, such as Ghostscript, which would run what a stranger wrote."""

_JPEG_MAGIC = b"\xff\xd8\xff"
_LEAST_SCALE = 2
"""JPEG is decoded whole or at four, three, two or one eighth: at five to seven eighths it costs more than whole."""

Pixels = npt.NDArray[np.uint8]


def extension_of(key: str) -> str:
    """Return what follows the last dot of a field's name."""
    return key.rpartition(".")[2]


@dataclass(frozen=True)
class ImageField:
    """Decodes images as webdataset's handler of the same name does, once the header has been looked at.

    Attributes:
        spec: What comes out: `pil`, `rgb8`, `torchrgb8` and the others that webdataset has.
    """

    spec: str

    def __post_init__(self) -> None:
        if self.spec not in imagespecs:
            expected = f"a function or one of {', '.join(imagespecs)}"
            raise InputError("unknown decoder", expected=expected, found=repr(self.spec))

    def __call__(self, key: str, data: bytes) -> Any:
        """Return the image, or None if the field is none."""
        if extension_of(key).lower() not in _IMAGE_EXTENSIONS:
            return None
        _open_image(data).close()
        return ImageHandler(self.spec)(key, data)


@dataclass(frozen=True)
class Resized:
    """Decodes JPEG, PNG and WebP to one size; made by `resized`."""

    height: int
    width: int
    crop: Crop | None
    library: Library
    output: Output
    extensions: ClassVar[frozenset[str]] = frozenset({"jpg", "jpeg", "jpe", "jfif", "png", "webp"})

    def __call__(self, key: str, data: bytes) -> Any:
        """Return the image, or None if the field is none of the three."""
        if extension_of(key).lower() not in self.extensions:
            return None
        is_jpeg = data[: len(_JPEG_MAGIC)] == _JPEG_MAGIC
        pixels = self._by_simplejpeg(data) if is_jpeg and self.library == "simplejpeg" else None
        if pixels is None:
            pixels = self._by_pillow(data)
        if self.output == "torch":
            return self._planes(pixels)
        pixels = self._resampled(pixels)
        return _imported("PIL.Image").fromarray(pixels) if self.output == "pil" else pixels

    def _by_simplejpeg(self, data: bytes) -> Pixels | None:
        """Return what is needed of a JPEG, of about the size that is; None for CMYK, which is left to Pillow."""
        simplejpeg = _imported("simplejpeg")
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
        _check_pixels(width, height)
        if colorspace in ("CMYK", "YCCK"):
            return None
        pixels: Pixels = simplejpeg.decode_jpeg(
            data, "RGB", min_height=self.height, min_width=self.width, min_factor=_LEAST_SCALE
        )
        top, left, height, width = self._box(*pixels.shape[:2])
        return np.ascontiguousarray(pixels[top : top + height, left : left + width])

    def _by_pillow(self, data: bytes) -> Pixels:
        image = _open_image(data, _RESIZED_FORMATS)
        if image.mode[0] in "IF":
            raise InputError(
                "an image has more than 8 bits a channel",
                expected="8 bits",
                found=f"mode {image.mode}",
                remedy="decode it with a function of your own: what it is to be scaled by is not known here",
            )
        image.draft(None, (self.width, self.height))
        image = image.convert("RGB")
        top, left, height, width = self._box(image.height, image.width)
        box = (left, top, left + width, top + height)
        bilinear = _imported("PIL.Image").Resampling.BILINEAR
        return np.array(image.resize((self.width, self.height), bilinear, box=box, reducing_gap=2.0))

    def _resampled(self, pixels: Pixels) -> Pixels:
        """Return pixels of the size that is needed, of shape (height, width, 3)."""
        if pixels.shape[:2] == (self.height, self.width):
            return pixels
        resampled = self._interpolated(_imported("torch").from_numpy(pixels)[None].permute(0, 3, 1, 2))
        return np.ascontiguousarray(resampled.permute(1, 2, 0).numpy())

    def _planes(self, pixels: Pixels) -> Any:
        """Return a tensor of the size that is needed, of shape (3, height, width)."""
        planes = _imported("torch").from_numpy(pixels).permute(2, 0, 1)
        return planes if pixels.shape[:2] == (self.height, self.width) else self._interpolated(planes[None])

    def _interpolated(self, planes: Any) -> Any:
        """Resize by torch, whose kernel is Pillow's method in vector instructions, and lets other threads run.

        What torch takes for channels_last by its strides, an image of several planes in one, comes back as such; a
        batch made by `[None]` alone it takes for planes, and gives planes without a copy. Either is one thread's work
        if its memory is contiguous: more would keep other ranks' processors busy waiting.
        """
        interpolate = _imported("torch.nn.functional").interpolate
        return interpolate(planes, (self.height, self.width), mode="bilinear", antialias=True)[0]

    def _box(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return top, left, height and width of the part of an image that is needed."""
        if self.crop is None:
            return 0, 0, height, width
        cut_height, cut_width = height, width
        if self.height * width >= self.width * height:
            cut_width = max(1, (2 * height * self.width + self.height) // (2 * self.height))
        else:
            cut_height = max(1, (2 * width * self.height + self.width) // (2 * self.width))
        return (height - cut_height) // 2, (width - cut_width) // 2, cut_height, cut_width


def resized(
    size: int | tuple[int, int],
    *,
    crop: Crop | None = None,
    library: Library = "simplejpeg",
    output: Output = "torch",
) -> Resized:
    """Return a decoder of JPEG, PNG and WebP to one size, for `Dataset.decode`.

    A JPEG is decoded at the least of four, three, two or one eighth that is no smaller than what is asked for
    (`pillow` has no three), else whole; then resized (bilinear, antialiased). Smaller images are enlarged. What comes
    is always RGB: grey is repeated, transparency left out, CMYK converted. An EXIF orientation is not applied.
    Deterministic for one library.

    Args:
        size: Height and width in pixels, or one number for both.
        crop: None squeezes the whole image into the size; `center` keeps its proportions and takes the largest part
            of them from the middle.
        library: What decodes JPEG: `simplejpeg` (the fastest; refuses any file that libjpeg warns of) or `pillow`. They
            differ by rounding, so neither stands in for the other by itself.
        output: `torch`: a uint8 tensor of shape (3, height, width); `numpy`: uint8 of shape (height, width, 3);
            `pil`: a PIL image.

    Raises:
        InputError: An argument is invalid.
    """
    height, width = size if isinstance(size, tuple) and len(size) == 2 else (size, size)
    problems = []
    if not all(isinstance(side, int) and not isinstance(side, bool) and side >= 1 for side in (height, width)):
        problems.append(f"size = {size!r}: expected one or two integers of at least 1")
    for name, value, known in (
        ("crop", crop, (None, *get_args(Crop))),
        ("library", library, get_args(Library)),
        ("output", output, get_args(Output)),
    ):
        if value not in known:
            problems.append(f"{name} = {value!r}: expected one of {', '.join(map(repr, known))}")
    if problems:
        raise InputError("invalid arguments of resized", found="; ".join(problems))
    return Resized(height, width, crop, library, output)


def _open_image(data: bytes, formats: tuple[str, ...] | None = None) -> Any:
    """Open an image with Pillow, which reads no more than its header."""
    pillow = _imported("PIL.Image")
    try:
        image = pillow.open(io.BytesIO(data), formats=formats)
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise _too_many_pixels(str(error)) from error
    _check_pixels(*image.size)
    if image.format in _PROGRAM_FORMATS:
        raise InputError(
            f"images of the format {image.format} are not decoded",
            expected="a format that runs no other program",
            remedy="pass a function of your own to decode if you trust where the data comes from",
        )
    return image


def _check_pixels(width: int, height: int) -> None:
    max_pixels = _imported("PIL.Image").MAX_IMAGE_PIXELS
    if max_pixels is not None and width * height > max_pixels:
        raise _too_many_pixels(f"{width} x {height} pixels")


def _too_many_pixels(found: str) -> InputError:
    return InputError(
        "an image has too many pixels, so it was not decoded",
        expected=f"at most {_imported('PIL.Image').MAX_IMAGE_PIXELS}",
        found=found,
        remedy="raise PIL.Image.MAX_IMAGE_PIXELS if you trust where the data comes from",
    )


def _imported(module: str) -> Any:
    """Import an optional library."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        names = {"PIL.Image": "pillow", "simplejpeg": "simplejpeg"}
        if error.name == "torch":
            raise MissingDependencyError.for_extra("torch") from error
        if module not in names:
            raise
        raise MissingDependencyError(
            f"{names[module]} is not installed", remedy="install it, or wdsplit with it: pip install 'wdsplit[images]'"
        ) from error
