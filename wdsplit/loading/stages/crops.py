"""The part of an image to crop, and whether to mirror it. Pure (no I/O)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Box", "middle_box", "random_box"]

_MAX_TRIES = 10


class Box(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int

    def scaled(self, size: tuple[int, int], new_size: tuple[int, int]) -> Box:
        """Return the same part of the image at another size, its edges rounded; both are height and width."""
        top, bottom = _scaled(self.top, self.top + self.height, size[0], new_size[0])
        left, right = _scaled(self.left, self.left + self.width, size[1], new_size[1])
        return Box(top, left, bottom - top, right - left)


def _scaled(begin: int, end: int, side: int, new_side: int) -> tuple[int, int]:
    first = min((2 * begin * new_side + side) // (2 * side), new_side - 1)
    return first, max(first + 1, (2 * end * new_side + side) // (2 * side))


def middle_box(height: int, width: int, shape: tuple[int, int]) -> Box:
    """Return the largest part of an image that has the proportions of a shape (height, width), from the middle."""
    cut_height, cut_width = height, width
    if shape[0] * width >= shape[1] * height:
        cut_width = max(1, (2 * height * shape[1] + shape[0]) // (2 * shape[0]))
    else:
        cut_height = max(1, (2 * width * shape[0] + shape[1]) // (2 * shape[1]))
    return Box((height - cut_height) // 2, (width - cut_width) // 2, cut_height, cut_width)


def random_box(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], draw: Callable[[], float]
) -> Box:
    """Return a random part of an image, as torchvision's `RandomResizedCrop` defines it.

    Its area is drawn evenly from `scale`, and width / height from `ratio`, evenly in its logarithm. If ten such parts
    do not fit, it is the largest from the middle whose proportions are within `ratio`.

    Args:
        height: Height of the image, in pixels.
        width: Width of the image, in pixels.
        scale: The least and the greatest share of the image's area.
        ratio: The least and the greatest width / height.
        draw: Gives random numbers from 0 up to 1.
    """
    logarithms = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_MAX_TRIES):
        area = height * width * _between(*scale, draw)
        proportion = math.exp(_between(*logarithms, draw))
        cut_width, cut_height = round(math.sqrt(area * proportion)), round(math.sqrt(area / proportion))
        if 0 < cut_width <= width and 0 < cut_height <= height:
            top = int(draw() * (height - cut_height + 1))
            left = int(draw() * (width - cut_width + 1))
            return Box(top, left, cut_height, cut_width)
    cut_height = max(1, min(height, round(width / ratio[0])))
    cut_width = max(1, min(width, round(height * ratio[1])))
    return Box((height - cut_height) // 2, (width - cut_width) // 2, cut_height, cut_width)


def _between(low: float, high: float, draw: Callable[[], float]) -> float:
    return low + (high - low) * draw()
