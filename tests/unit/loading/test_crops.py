import math
import random

from wdsplit.loading.stages.crops import Box, random_box


def boxes(count):
    return [random_box(375, 500, (0.08, 1.0), (3 / 4, 4 / 3), random.Random(seed).random) for seed in range(count)]


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
    assert boxes(3) == [Box(1, 17, 372, 432), Box(151, 72, 177, 216), Box(0, 1, 373, 482)]


def test_a_part_is_the_same_part_at_another_size():
    assert Box(10, 20, 100, 200).scaled((400, 400), (200, 200)) == Box(5, 10, 50, 100)
    assert Box(10, 20, 100, 200).scaled((400, 400), (400, 400)) == Box(10, 20, 100, 200)
    assert Box(399, 399, 1, 1).scaled((400, 400), (50, 50)) == Box(49, 49, 1, 1)
    for box in boxes(100):
        top, left, height, width = box.scaled((375, 500), (188, 250))
        assert 0 <= top < top + height <= 188
        assert 0 <= left < left + width <= 250
        assert abs(2 * top - box.top) <= 1.1
        assert abs(2 * (left + width) - (box.left + box.width)) <= 1.1
