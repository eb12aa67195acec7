import math
import random

import pytest

from wdsplit.loading.stages.crops import Box, random_box

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def boxes(height, width, scale=SCALE, ratio=RATIO, count=400):
    return [random_box(height, width, scale, ratio, random.Random(seed).random) for seed in range(count)]


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 375), (224, 224), (64, 80)])
def test_a_random_part_has_an_area_and_proportions_of_the_ranges(height, width):
    found = boxes(height, width)
    for box in found:
        assert 0 <= box.top <= height - box.height
        assert 0 <= box.left <= width - box.width
        slack = 1 / min(box.height, box.width)  # sides are rounded
        assert SCALE[0] * (1 - 2 * slack) <= box.height * box.width / (height * width) <= 1
        assert RATIO[0] * (1 - slack) <= box.width / box.height <= RATIO[1] * (1 + slack)
    shares = sorted(box.height * box.width / (height * width) for box in found)
    assert shares[0] < 0.15 < 0.8 < shares[-1]
    assert {box.top + box.height for box in found} >= {height}
    assert len({(box.top, box.left) for box in found}) > 250


def test_a_part_that_fits_is_as_torchvision_draws_it():
    """Area, logarithm of the proportions, place: torchvision.transforms.RandomResizedCrop.get_params."""
    for seed in range(50):
        draw = random.Random(seed).random
        area = 375 * 500 * (0.08 + 0.42 * draw())  # so small that it always fits
        proportion = math.exp(math.log(0.9) + (math.log(1.1) - math.log(0.9)) * draw())
        width, height = round(math.sqrt(area * proportion)), round(math.sqrt(area / proportion))
        top, left = int(draw() * (375 - height + 1)), int(draw() * (500 - width + 1))
        found = random_box(375, 500, (0.08, 0.5), (0.9, 1.1), random.Random(seed).random)
        assert found == Box(top, left, height, width)


def test_what_is_drawn_never_changes():
    """Whoever changes this changes every training run."""
    assert boxes(375, 500, count=3) == [Box(1, 17, 372, 432), Box(151, 72, 177, 216), Box(0, 1, 373, 482)]


def test_a_part_is_the_same_part_at_another_size():
    assert Box(10, 20, 100, 200).scaled((400, 400), (200, 200)) == Box(5, 10, 50, 100)
    assert Box(10, 20, 100, 200).scaled((400, 400), (400, 400)) == Box(10, 20, 100, 200)
    assert Box(399, 399, 1, 1).scaled((400, 400), (50, 50)) == Box(49, 49, 1, 1)
    for box in boxes(375, 500, count=100):
        top, left, height, width = box.scaled((375, 500), (188, 250))
        assert 0 <= top < top + height <= 188
        assert 0 <= left < left + width <= 250
        assert abs(2 * top - box.top) <= 1.1
        assert abs(2 * (left + width) - (box.left + box.width)) <= 1.1
