"""`to_device`: the promises of a Loader, with a batch taken ahead.

The device of most tests is torch's "meta", which keeps shapes and no values; what identifies samples comes as text,
which stays where it is. Tests of the copies themselves need a GPU.
"""

from collections import OrderedDict, UserDict, namedtuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from loader_kinds import KINDS, every_kind
from made_datasets import deliveries, delivering, expected_batches
from wdsplit import Dataset, InputError, Loader, to_device
from wdsplit.errors import WdsplitError

BATCH, NUM_STEPS = 12, 9
"""Of an epoch of 101 samples."""

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def loader_of(path, device=None, stage=None, **options):
    dataset = (
        Dataset(path)
        .decode()
        .map(lambda sample: {**sample, "is": f"{sample['__position__']} {sample['cls']} {sample['__pad__']}"})
    )
    dataset = (dataset if stage is None else dataset.map(stage)).to_tuple("is", "cls", "__pad__")
    loader = Loader(dataset, BATCH, **options)
    return loader if device is None else to_device(loader, device)


def position(loader):
    """Return all that a loader says of how far it has got."""
    said = loader.statistics()
    counts = said.batches, said.samples, said.epoch, said.position
    return loader.state_dict(), loader.epoch, loader.step, len(loader), counts


def texts(batches):
    return [batch[0] for batch in batches]


@pytest.mark.parametrize("options", [KINDS["none"], KINDS["processes"]])
def test_batches_are_the_same_with_their_tensors_on_the_device(numbers, options):
    loader = loader_of(numbers, "meta", **options)
    for epoch in range(2):
        plain = loader_of(numbers)
        plain.set_epoch(epoch)
        expected, given = list(plain), list(loader)
        assert texts(given) == texts(expected)
        for batch, other in zip(given, expected, strict=True):
            for tensor, one in zip(batch[1:], other[1:], strict=True):
                assert (tensor.device.type, tensor.dtype, tensor.shape) == ("meta", one.dtype, one.shape)


def followed(path, device, options, bad, skipped):
    """Return what a loop sees of each step, up to an error; after the third step it skips some steps."""

    def failing(sample):
        if sample["cls"] in bad:
            raise ValueError(f"row {sample['cls']} is bad")
        return sample

    loader = loader_of(path, device, failing, **options)
    seen = [position(loader)]
    try:
        for step, batch in enumerate(loader, 1):
            seen.append((batch[0], position(loader)))
            if step == 3 and skipped:
                loader.skip(*skipped)
    except ValueError as error:
        assert "is bad" in str(error)
        seen.append("an error")
    return [*seen, position(loader)]


@pytest.mark.parametrize(
    ("options", "failing_step", "skipped"),
    [
        *((KINDS["none"], *case) for case in ((None, None), (0, None), (1, None), (8, None), (None, (5, 8)))),
        *((KINDS["threads"], *case) for case in ((None, (3, 3)), (2, None))),
        (KINDS["persistent processes"], 7, (4, 6)),
    ],
)
def test_states_errors_and_skips_are_those_of_the_batch_that_was_delivered(numbers, options, failing_step, skipped):
    """Not of the one that is ahead; also where that one is skipped."""
    bad = set() if failing_step is None else {expected_batches(numbers, NUM_STEPS)[failing_step][0][1]}
    plain, ahead = (followed(numbers, device, options, bad, skipped) for device in (None, "meta"))
    assert plain == ahead
    assert ("an error" in ahead) == bool(bad)
    assert len(ahead) - 3 <= (NUM_STEPS if failing_step is None else failing_step)


def test_exactly_one_batch_is_taken_ahead_and_none_on_the_cpu(numbers):
    made = []

    def collate(samples):
        made.append(len(samples))
        return torch.zeros(len(samples))

    for device, ahead in (("meta", 1), ("cpu", 0)):
        loader = loader_of(numbers, device, collate_fn=collate)
        made.clear()
        for step, _ in enumerate(loader, 1):
            assert len(made) == min(step + ahead, NUM_STEPS)


# What is copied


Pair = namedtuple("Pair", "left right")


def nested(samples):
    """Return a batch of all kinds of containers."""
    column = torch.tensor([cls for _, cls, _ in samples])
    return {
        "plain": column,
        "deep": [{"a": (column, [column.float()])}],
        "pair": Pair(column, "right"),
        "ordered": OrderedDict(x=column),
        "user": UserDict(x=column, y="text"),
        "packed": pack_sequence([torch.ones(3), torch.ones(2)], enforce_sorted=False),
        "texts": [text for text, _, _ in samples],
        "array": np.arange(3),
        "others": (None, 3, b"bytes", {1, 2}),
    }


def test_tensors_are_copied_wherever_they_are_and_all_else_stays_as_it_is(numbers):
    made = []

    def collate(samples):
        made.append(nested(samples))
        return made[-1]

    given = next(iter(loader_of(numbers, "meta", collate_fn=collate)))
    source = made[0]
    pair, user, packed = given["pair"], given["user"], given["packed"]
    assert [packed.data.device.type, packed.batch_sizes.device.type] == ["meta", "cpu"]
    tensors = [given["plain"], *given["deep"][0]["a"][1], given["deep"][0]["a"][0], pair.left, given["ordered"]["x"]]
    assert {tensor.device.type for tensor in [*tensors, user["x"]]} == {"meta"}
    assert given["deep"][0]["a"][1][0].dtype == torch.float32
    assert [type(given[name]) for name in ("pair", "ordered", "user")] == [Pair, OrderedDict, UserDict]
    assert (pair.right, user["y"]) == ("right", "text")
    assert all(given[name] is source[name] for name in ("texts", "array", "others"))
    assert source["plain"].device.type == source["user"]["x"].device.type == "cpu"


# What is refused


def test_a_device_that_is_not_there_is_refused(numbers):
    for device in ("gpu", "cuda:99", None, "mps:7"):
        with pytest.raises(InputError, match="invalid device"):
            to_device(loader_of(numbers), device)


def test_what_is_no_loader_or_has_no_tensors_is_refused(numbers):
    with pytest.raises(WdsplitError, match="cannot copy batches"):
        to_device(Dataset(numbers), "cpu")
    loader = Loader(delivering(Dataset(numbers)), BATCH, output="numpy")
    with pytest.raises(InputError, match="numpy arrays cannot be copied"):
        to_device(loader, "meta")
    with pytest.raises(InputError, match="or normalised there"):
        to_device(loader, "cpu", normalize=((0.5,) * 3, (0.2,) * 3))
    assert to_device(loader, "cpu") is loader


# On a GPU


@needs_cuda
@every_kind
def test_batches_on_a_gpu_are_the_same_batches(numbers, options):
    loader = to_device(Loader(delivering(Dataset(numbers)), BATCH, **options), "cuda")
    for _ in range(2):
        loader.set_epoch(0)
        batches = []
        for batch in loader:
            assert all(column.device == torch.device("cuda", torch.cuda.current_device()) for column in batch)
            batches.append(batch)
        assert [deliveries(batch) for batch in batches] == expected_batches(numbers, NUM_STEPS)


@needs_cuda
def test_what_the_model_still_reads_is_not_written_over_by_later_copies(numbers):
    """Each batch is used late, on a stream that has much to do, while the memory of batches is freed and used again."""

    def collate(samples):
        return torch.full((2**20,), float(samples[0][0]))

    dataset = Dataset(numbers).decode().to_tuple("__position__")
    busy, sums = torch.randn(2048, 2048, device="cuda"), []
    for batch in to_device(Loader(dataset, BATCH, collate_fn=collate), "cuda"):
        for _ in range(20):
            busy = (busy @ busy).tanh()
        sums.append(batch.sum())
        del batch
    assert [float(value) / 2**20 for value in sums] == [12.0 * step for step in range(NUM_STEPS)]


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_bytes_of_images_are_normalised_on_the_device_and_other_tensors_are_not(numbers, device):
    def with_images(sample):
        image = torch.full((3, 4, 5), sample["cls"] % 256, dtype=torch.uint8)
        return sample["cls"], image, image[:1], image.half()

    loader = Loader(Dataset(numbers).decode().map(with_images), BATCH)
    given = list(to_device(loader, device, normalize=(MEAN, np.array(STD))))
    for classes, images, masks, halves in given:
        pixels = (classes % 256).reshape(-1, 1, 1, 1).double() / 255
        expected = (pixels - torch.tensor(MEAN).reshape(3, 1, 1)) / torch.tensor(STD).reshape(3, 1, 1)
        assert (images.dtype, masks.dtype, halves.dtype) == (torch.float32, torch.uint8, torch.half)
        assert torch.allclose(images.double(), expected.expand(-1, 3, 4, 5), atol=1e-6)
    assert [len(classes) for classes, *_ in given] == [len(classes) for classes, *_ in loader]


@pytest.mark.parametrize("normalize", [MEAN, (MEAN, None), (0.5, 0.5), (MEAN, (1, 1, 0)), "imagenet"])
def test_numbers_that_do_not_normalise_are_refused(numbers, normalize):
    with pytest.raises(InputError, match="invalid normalize"):
        to_device(loader_of(numbers), "cpu", normalize)
