"""Images: decoded no larger than needed, and refused by their headers if they are decompression bombs.

The libraries that decode images are optional, and imported when used. The scale at which a JPEG is decoded depends only
on its size, the part that is used and the target size. An EXIF orientation is applied only with `exif=True`, as
webdataset, Pillow and torchvision do not apply it either.
"""

from __future__ import annotations

import functools
import math
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from webdataset.autodecode import IMAGE_EXTENSIONS, imagespecs

from wdsplit.errors import InputError, PipelineError
from wdsplit.fields.image_sizes import is_image
from wdsplit.loading.stages.crops import Box, middle_box, random_box
from wdsplit.loading.stages.image_files import (
    IMAGE_FORMATS,
    JPEG_MAGIC,
    check_pixels,
    check_scans,
    eight_bits,
    imported,
    loaded,
    open_image,
    orientation_of,
    plain_pixels,
    upright,
)

__all__ = [
    "ImageField",
    "Numbers",
    "Resized",
    "numbers_problems",
    "resized",
    "scale_and_shift",
]

Crop = Literal["center", "random"]
Library = Literal["simplejpeg", "pillow"]
Output = Literal["torch", "numpy", "pil"]
Dtype = Literal["uint8", "float32", "float16", "bfloat16"]

_IMAGE_EXTENSIONS = frozenset(IMAGE_EXTENSIONS)

_LEAST_SCALE = 2
"""JPEG is decoded whole or at four, three, two or one eighth: at five to seven eighths it costs more than whole."""

_FIRST_SWAPPED = 5
"""EXIF's orientations from this one on swap height and width."""

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
"""The defaults of torchvision's `RandomResizedCrop`."""

_ALONE = 2**15 - 1
"""As many numbers torch copies in this thread: others would keep other ranks' processors busy waiting."""
_LARGEST_KEPT_BYTES = 2**24
"""Larger images are decoded into memory of their own."""

Pixels = npt.NDArray[np.uint8]
Numbers = tuple[float, ...]


class _Scratch(threading.local):
    """Memory of a thread that each image is decoded into: new memory takes as long as half of the decoding."""

    def __init__(self) -> None:
        self._memory: dict[Any, npt.NDArray[Any]] = {}

    def at_least(self, count: int, dtype: Any) -> npt.NDArray[Any]:
        """Return memory for so many numbers, or more."""
        if len(self._memory.get(dtype, ())) < count:
            self._memory[dtype] = np.empty(count, dtype)
        return self._memory[dtype]


_scratch = _Scratch()


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
        return key.rpartition(".")[2].lower() in _IMAGE_EXTENSIONS

    def __call__(self, key: str, data: bytes) -> Any:
        """Return the image, or None if the field is none."""
        if not self.takes(key):
            return None
        kind, dtype, mode = imagespecs[self.spec]
        pixels: npt.NDArray[Any] | None = None if self.exif else plain_pixels(data, mode.upper())
        if pixels is None:
            image = open_image(data)
            orientation = orientation_of(image) if self.exif else 1
            if kind == "pil" and orientation == 1:
                return eight_bits(image).convert(mode.upper())
            pixels = upright(np.asarray(loaded(image, mode.upper())), orientation)
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
    dtype: Dtype = "uint8"
    mean: Numbers = (0, 0, 0)
    std: Numbers = (1, 1, 1)

    @property
    def row(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of an image; bfloat16, which numpy does not have, lies in uint16."""
        shape = (3, self.height, self.width) if self.output == "torch" else (self.height, self.width, 3)
        return shape, np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype)

    @property
    def row_bytes(self) -> int:
        """The bytes of an image in a batch; 0 if a batch has Pillow's images."""
        shape, dtype = self.row
        return 0 if self.output == "pil" else math.prod(shape) * dtype.itemsize

    @property
    def draws(self) -> bool:
        """Whether the crop or the flip is random."""
        return self.flip or self.crop == "random"

    def takes(self, key: str) -> bool:
        """Tell by its name whether a field is an image of a common format."""
        return is_image(key.lower())

    def __call__(self, key: str, data: bytes, seed: int | None = None) -> Any:
        """Return the image, or None if the field is none of a common format; `seed` is needed if `draws`."""
        return self.column([data], [seed])[0] if self.takes(key) else None

    def column(
        self, values: Sequence[bytes], seeds: Iterable[int | None], memory: npt.NDArray[Any] | None = None
    ) -> Any:
        """Return n images in one tensor or array, into which each is decoded, or a list of Pillow's images.

        Args:
            values: The bytes of the images.
            seeds: A seed for each, None if nothing is drawn.
            memory: An array of n of `row` for the result, of any strides; None for new memory.
        """
        shape, dtype = self.row
        images = np.empty((len(values), *shape), dtype) if memory is None else memory
        planes = images if self.output == "torch" else images.transpose(0, 3, 1, 2)
        for out, data, seed in zip(planes, values, seeds, strict=False):
            pixels = self._decoded(data, seed).transpose(2, 0, 1)
            if self.dtype == "uint8":
                out[:] = pixels
            else:
                self._normalise(pixels, out)
        if self.output == "pil":
            # Copies: an image that is kept must not keep the others' memory.
            return [imported("PIL.Image").fromarray(pixels.copy()) for pixels in images]
        if self.output == "numpy":
            return images
        torch = imported("torch")
        return torch.from_numpy(images).view(getattr(torch, self.dtype))

    def _normalise(self, pixels: Pixels, out: npt.NDArray[Any]) -> None:
        """Write (pixels / 255 - mean) / std to `out`; both of shape (3, height, width)."""
        scale, shift = scale_and_shift(self.mean, self.std)
        numbers = (
            out if self.dtype == "float32" else _scratch.at_least(out.size, np.float32)[: out.size].reshape(out.shape)
        )
        numbers[...] = pixels
        numbers *= scale
        numbers += shift
        if self.dtype != "float32":  # by torch, because numpy is ten times slower to round to 16 bits
            torch = imported("torch")
            halves, rows = torch.from_numpy(out).view(getattr(torch, self.dtype)), max(1, _ALONE // self.width)
            for plane, target in zip(torch.from_numpy(numbers), halves, strict=True):
                for top in range(0, self.height, rows):
                    target[top : top + rows].copy_(plane[top : top + rows])

    def _decoded(self, data: bytes, seed: int | None) -> Pixels:
        """Return the pixels of an image in the target size: uint8 of shape (height, width, 3)."""
        if self.draws and seed is None:
            raise PipelineError(
                "there is no seed for a random crop or flip",
                expected="a sample of a wdsplit.Dataset, decoded by Dataset.decode",
                remedy="elsewhere use resized without flip=True and crop='random', and add transforms of your own",
            )
        draw = random.Random(seed).random if self.draws else None
        is_flipped = draw is not None and draw() < 0.5 and self.flip
        is_jpeg, by_torch = data.startswith(JPEG_MAGIC), self.library == "simplejpeg"
        header = _jpeg_header(data) if is_jpeg and by_torch else None
        plain = None if is_jpeg or self.exif else plain_pixels(data, "RGB")
        if header is not None:
            pixels = self._of_jpeg(data, header, draw)
        elif plain is not None and by_torch:
            box, _ = self._drawn(_size_of(plain), draw)
            pixels = self._by_torch(plain, self._part(box, _size_of(plain), _size_of(plain)))
        else:
            image = open_image(data, IMAGE_FORMATS) if plain is None else imported("PIL.Image").fromarray(plain)
            pixels = self._of_image(image, draw, by_torch and not is_jpeg)
        return pixels[:, ::-1] if is_flipped else pixels

    def _of_jpeg(self, data: bytes, stored: tuple[int, int], draw: Callable[[], float] | None) -> Pixels:
        """Return a JPEG of a stored height and width in the target size: decoded by simplejpeg, resized by torch."""
        orientation = orientation_of(open_image(data, IMAGE_FORMATS)) if self.exif else 1
        size = _turned(stored, orientation)
        box, least = self._drawn(size, draw)
        num_bytes = 3 * stored[0] * stored[1]
        memory = _scratch.at_least(num_bytes, np.uint8) if num_bytes <= _LARGEST_KEPT_BYTES else None
        min_height, min_width = _turned(least, orientation)
        decoded = imported("simplejpeg").decode_jpeg(
            data, "RGB", min_height=min_height, min_width=min_width, min_factor=_LEAST_SCALE, buffer=memory
        )
        pixels = upright(decoded, orientation)
        return self._by_torch(pixels, self._part(box, size, _size_of(pixels)))

    def _of_image(self, image: Any, draw: Callable[[], float] | None, by_torch: bool) -> Pixels:
        """Return an image that Pillow decodes in the target size, resized by torch or Pillow."""
        orientation = orientation_of(image) if self.exif else 1
        size = _turned((image.height, image.width), orientation)
        box, least = self._drawn(size, draw)
        min_height, min_width = _turned(least, orientation)
        image.draft(None, (min_width, min_height))
        image = loaded(image, "RGB")
        if by_torch:
            pixels = upright(np.asarray(image), orientation)
            return self._by_torch(pixels, self._part(box, size, _size_of(pixels)))
        if orientation != 1:
            image = imported("PIL.Image").fromarray(upright(np.asarray(image), orientation))
        return self._by_pillow(image, self._part(box, size, (image.height, image.width)))

    def _drawn(self, size: tuple[int, int], draw: Callable[[], float] | None) -> tuple[Box | None, tuple[int, int]]:
        """Return the random part of an image of a size, if one is drawn; and the least size to decode the image at."""
        if draw is None or self.crop != "random":
            return None, (self.height, self.width)
        box = random_box(*size, self.scale, self.ratio, draw)
        return box, (-(-self.height * size[0] // box.height), -(-self.width * size[1] // box.width))

    def _part(self, box: Box | None, size: tuple[int, int], decoded: tuple[int, int]) -> Box:
        """Return the part to use of an image that was decoded at another size."""
        if box is not None:
            return box.scaled(size, decoded)
        return middle_box(*decoded, (self.height, self.width)) if self.crop else Box(0, 0, *decoded)

    def _by_pillow(self, image: Any, box: Box) -> Pixels:
        edges = (box.left, box.top, box.left + box.width, box.top + box.height)
        bilinear = imported("PIL.Image").Resampling.BILINEAR
        return np.asarray(image.resize((self.width, self.height), bilinear, box=edges, reducing_gap=2.0))

    def _by_torch(self, pixels: Pixels, box: Box) -> Pixels:
        """Return a part of an image in the target size.

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


@functools.cache
def scale_and_shift(mean: Numbers, std: Numbers) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return by what pixels are multiplied, and what is added then: float32 of shape (3, 1, 1)."""
    means, stds = (np.array(numbers).reshape(3, 1, 1) for numbers in (mean, std))
    return (1 / (255 * stds)).astype(np.float32), (-means / stds).astype(np.float32)


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
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    dtype: Dtype | None = None,
) -> Resized:
    """Return a decoder of images to one size, for `Dataset.decode`: JPEG, PNG, WebP, GIF, BMP, TIFF, PPM and PGM.

        mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        crops = wdsplit.resized(224, crop="random", flip=True, mean=mean, std=std)
        train = wdsplit.Dataset("data/train").decode(crops)
        test = wdsplit.Dataset("data/test").decode(wdsplit.resized(224, crop="center", mean=mean, std=std))

    A JPEG is decoded at a reduced scale if the cropped part is then still at least as large as `size`: 1/8, 1/4, 3/8
    or 1/2 (`pillow` has no 3/8). Then it is resized (bilinear, antialiased). Smaller images are enlarged. The result is
    always RGB: grey is repeated, transparency dropped, CMYK converted. Of 16 bits the upper eight are used, of an
    animation the first image. Results are deterministic for one library. `wdsplit bench
    --bad-samples-file` lists the images that cannot be decoded.

    Random crops and flips are drawn as in `Dataset.map_random`: the same on any number of ranks and after a resume,
    different in each epoch. All images of a sample get the same crop and flip.

    A `Loader` decodes and normalises each image directly in the memory of its batch, if no stages but `rename` and
    `to_tuple` come after it. It uses this memory again as soon as nothing refers to the batch any more.

    Args:
        size: Height and width in pixels, or one number for both.
        crop: None squeezes the whole image into the size; `center` uses the largest centred part with the proportions
            of `size`; `random` uses a random part, as torchvision's `RandomResizedCrop` does.
        flip: Mirror half of the images, at random.
        scale: For `random`: smallest and largest share of the image's area.
        ratio: For `random`: smallest and largest width / height of the part, before it is resized.
        library: `simplejpeg` decodes JPEG (fastest; refuses any file that libjpeg warns about) and torch resizes; or
            `pillow` does both. Their results differ by rounding, so there is no automatic fallback.
        output: `torch`: a tensor of shape (3, height, width); `numpy`: an array of shape (height, width, 3); `pil`: a
            PIL image.
        exif: Turn images upright as their EXIF orientation says, as viewers do; by default they are as stored.
        mean: Mean of red, green and blue, in [0, 1], which is subtracted; by default 0.
        std: Their standard deviation, by which the difference is divided; by default 1.
        dtype: `uint8`, whole numbers up to 255; or `float32`, `float16` or `bfloat16` (`torch` only): divided by 255,
            then normalised. By default `float32` with a mean or std, else `uint8`.

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
        ("dtype", dtype, (None, *get_args(Dtype))),
    ):
        if value not in known:
            problems.append(f"{name} = {value!r}: expected one of {', '.join(map(repr, known))}")
    bounds: Any
    for range_name, bounds, default, largest in (("scale", scale, SCALE, 1.0), ("ratio", ratio, RATIO, math.inf)):
        is_pair = isinstance(bounds, (tuple, list)) and len(bounds) == 2
        if not is_pair or not all(isinstance(bound, Real) for bound in bounds):
            problems.append(f"{range_name} = {bounds!r}: expected two numbers")
        elif not 0 < bounds[0] <= bounds[1] <= largest or bounds[1] == math.inf:
            up_to = f" up to {largest:g}" if largest < math.inf else ""
            problems.append(f"{range_name} = {bounds!r}: expected two rising numbers above 0{up_to}")
        elif crop != "random" and tuple(bounds) != default:
            problems.append(f"{range_name} = {bounds!r}: works only with crop='random'")
    is_normalised = mean is not None or std is not None
    means, stds = (0.0, 0.0, 0.0) if mean is None else mean, (1.0, 1.0, 1.0) if std is None else std
    problems += numbers_problems(means, stds)
    chosen: Dtype = dtype or ("float32" if is_normalised else "uint8")
    if chosen == "uint8" and is_normalised:
        problems.append("dtype = 'uint8': expected a dtype of floating point with mean or std")
    if chosen in {"pil": ("float32", "float16", "bfloat16"), "numpy": ("bfloat16",)}.get(output, ()):
        problems.append(f"dtype = {chosen!r}: expected another one, which output={output!r} can have")
    if problems:
        raise InputError("invalid arguments of resized", found="; ".join(problems))
    numbers: Any = [tuple(map(float, each)) for each in (means, stds)]
    ranges = (scale[0], scale[1]), (ratio[0], ratio[1])
    return Resized(height, width, crop, flip, *ranges, library, output, exif, chosen, *numbers)


def numbers_problems(mean: Any, std: Any) -> list[str]:
    """Return what is wrong with the mean and the standard deviation of three channels."""
    problems = []
    for name, numbers, low in (("mean", mean, -math.inf), ("std", std, 0)):
        try:
            are_valid = len(numbers) == 3 and all(low < float(number) < math.inf for number in numbers)
        except (TypeError, ValueError):
            are_valid = False
        if not are_valid:
            expected = f"three numbers{' above 0' * (low == 0)}, of red, green and blue"
            problems.append(f"{name} = {numbers!r}: expected {expected}")
    return problems


def _jpeg_header(data: bytes) -> tuple[int, int] | None:
    """Return the height and width of a JPEG that simplejpeg decodes; None if Pillow has to, for its colours.

    Raises:
        InputError: It has too many pixels or scans.
    """
    check_scans(data)
    height, width, colorspace, _ = imported("simplejpeg").decode_jpeg_header(data)
    check_pixels(width, height)
    return None if colorspace in ("CMYK", "YCCK") else (height, width)


def _size_of(pixels: Pixels) -> tuple[int, int]:
    """Return the height and width of an image."""
    return pixels.shape[0], pixels.shape[1]


def _turned(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Return height and width, in the other order if an orientation swaps them."""
    height, width = size
    return (width, height) if orientation >= _FIRST_SWAPPED else (height, width)
