import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from alike import alike
from wdsplit.errors import PipelineError
from wdsplit.loading.transport.collate import collate, collate_packs, weave, weave_packs
from wdsplit.order.bundles import Packing


def woven(samples, owners):
    """Do as the loader does: collate the samples of each owner, and weave."""
    parts = []
    for owner in sorted(set(owners)):
        places = np.array([place for place, of in enumerate(owners) if of == owner])
        parts.append((places, collate([samples[place] for place in places])))
    return weave(parts, len(samples), pin=False)


def batch_of(samples):
    return woven(samples, [0] * len(samples))


# What is stacked


@pytest.mark.parametrize(
    "values",
    [
        *([1, -2, 3], [1.5, 2.0], [True, False], [1, 2.5]),
        *(list(np.arange(2).astype(dtype)) for dtype in ("int32", "float32", "bool")),
        *(list(np.ones((4, 2, 3), dtype)) for dtype in ("uint8", "float16", "bool")),
    ],
)
def test_numbers_and_arrays_become_what_numpy_makes_of_them(values):
    found, expected = batch_of(values), np.array(values)
    assert found.numpy().dtype == expected.dtype
    assert found.tolist() == expected.tolist()


NUMBERS = torch.arange(6.0).reshape(2, 3)


class Marked(torch.Tensor):
    """A tensor that is more than its memory."""


TENSORS = {
    "float": NUMBERS,
    "bool": NUMBERS > 2,
    "one number": torch.tensor(2.5),
    "nothing": torch.zeros(0, 3),
    "nothing in rows": torch.zeros(3, 0),
    "of no numpy dtype": NUMBERS.bfloat16(),
    "a part": NUMBERS[:1, 1:2],
    "columns of another": torch.arange(24.0).reshape(4, 6)[:, ::2],
    "transposed": NUMBERS.T,
    "expanded": torch.ones(1, 3).expand(2, 3),
    "conjugate": (NUMBERS * 1j).conj(),
    "negative of an imaginary part": (NUMBERS * 1j).conj().imag,
    "requires a gradient": NUMBERS.clone().requires_grad_(),
    "parameter": torch.nn.Parameter(NUMBERS),
    "subclass": NUMBERS.as_subclass(Marked),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_tensors_are_stacked_as_torch_stacks_them(tensor):
    for tensors in ([tensor], [tensor, tensor + tensor], [tensor + tensor, tensor, tensor]):
        found, expected = batch_of(tensors), torch.stack(tensors)
        assert (type(found), found.dtype, found.shape) == (type(expected), expected.dtype, expected.shape)
        assert found.is_contiguous() and found.requires_grad == expected.requires_grad
        assert torch.equal(found, expected)
        assert found.data_ptr() not in [each.data_ptr() for each in tensors] or not found.numel()


@pytest.mark.parametrize(
    "values",
    [
        ["a", "b"],
        [b"a", b"b"],
        [{"a": 1}, {"b": 2}],
        [[1], [2, 3]],
        [None, None],
        ["a", b"b", None],
        [np.array(["a"]), np.array(["b"])],
        [Image.new("RGB", (2, 2)), Image.new("RGB", (4, 4))],
    ],
    ids=["str", "bytes", "dict", "list", "None", "mixed", "array of text", "image"],
)
def test_all_else_comes_as_a_list_of_the_same_objects(values):
    column = batch_of([(value,) for value in values])[0]
    assert type(column) is list
    assert all(found is value for found, value in zip(column, values, strict=True))


# What is refused

REFUSED = {
    "other keys": [{"a": 1, "b": 1}, {"a": 1, "c": 1}],
    "other lengths": [(1, 2), (1, 2, 3)],
    "a dict and a tuple": [{"a": 1}, (1,)],
    "a tuple and a number": [(1,), 1],
    "a text and a dict": ["a", {"a": 1}],
    "ragged arrays": [np.zeros(2), np.zeros(3)],
    "arrays of other ranks": [np.zeros(2), np.zeros((2, 1))],
    "a number and a text": [1, "a"],
    "an array and bytes": [np.zeros(2), b"ab"],
    "an array and a tensor": [np.zeros(2), torch.zeros(2)],
    "a number and a tensor": [1.0, torch.tensor(1.0)],
    "an integer of more than 64 bits": [2**70, 1],
}


@pytest.mark.parametrize("samples", REFUSED.values(), ids=REFUSED.keys())
def test_samples_that_do_not_go_together_are_refused_with_a_remedy(samples):
    with pytest.raises(PipelineError) as caught:
        batch_of(samples)
    for text in (caught.value.expected, caught.value.found, caught.value.remedy):
        assert text


# Parts

scalars = {
    "ints": st.integers(-(2**63), 2**63 - 1),
    "floats": st.floats(allow_nan=False),
    "bools": st.booleans(),
    "numbers": st.integers(-(2**50), 2**50) | st.floats(allow_nan=False) | st.booleans(),
    "text": st.text(max_size=3),
    "bytes": st.binary(max_size=3),
    "anything": st.none() | st.text(max_size=3) | st.sets(st.integers(), max_size=2),
}
arrays = st.integers(-100, 100).map(lambda value: np.full((2, 2), value, np.int16))
tensors = st.integers(-100, 100).map(lambda value: torch.full((3,), value, dtype=torch.float32))
columns = [*scalars.values(), arrays, tensors]


@st.composite
def batches(draw, columns):
    """Draw samples, dicts or tuples or bare values, and the worker that each of them comes from."""
    size = draw(st.integers(1, 8))
    kinds = draw(st.lists(st.sampled_from(columns), min_size=1, max_size=3))
    drawn = [draw(st.lists(kind, min_size=size, max_size=size)) for kind in kinds]
    rows = list(zip(*drawn, strict=True))
    shape = draw(st.sampled_from(["dict", "tuple", "bare"]))
    if shape == "dict":
        rows = [{f"f{i}": value for i, value in enumerate(row)} for row in rows]
    elif shape == "bare":
        rows = drawn[0]
    return rows, draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))


def outcome(make, *arguments):
    """Return what a function gives; an error as its kind."""
    try:
        return make(*arguments)
    except PipelineError as error:
        return type(error)


@given(batches(columns))
def test_a_batch_is_the_same_however_many_parts_it_was_made_of(batch):
    samples, owners = batch
    assert alike(outcome(woven, samples, owners), outcome(batch_of, samples))


def test_integers_that_only_fit_unsigned_are_exact_or_refused():
    """[2**63, -1] must not become two floats."""
    for samples, owners in itertools.product([[2**63, 1], [2**64 - 1, -1]], [[0, 0], [0, 1]]):
        result = outcome(woven, samples, owners)
        assert result is PipelineError or result.tolist() == samples


# Packs


def packs_of(sizes, kind):
    """Return packs of dicts, of some numbers of samples each; arrays have 0 to 4 rows."""
    numbers = itertools.count()

    def sample():
        number = next(numbers)
        rows = np.full((number % 5, 2), number, np.int32)
        values = {"tokens": rows, "mask": rows[:, 0] > 3} if kind == "array" else {"tokens": torch.from_numpy(rows)}
        label = np.int16(number) if kind == "array" else torch.tensor(number)
        return {"__key__": f"k{number}", **values, "cls": number, "label": label}

    return [[sample() for _ in range(size)] for size in sizes]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.sampled_from(["array", "tensor"]), st.data())
def test_a_batch_of_packs_is_their_samples_one_after_another_however_they_are_divided(sizes, kind, data):
    packs = packs_of(sizes, kind)
    owners = data.draw(st.lists(st.integers(0, 2), min_size=len(sizes), max_size=len(sizes)))
    parts = []
    for owner in sorted(set(owners)):
        places = np.array([place for place, of in enumerate(owners) if of == owner])
        own = [packs[place] for place in places]
        samples = [*itertools.chain.from_iterable(own)]
        parts.append((places, collate_packs(samples, np.array(list(map(len, own))), Packing(100, False))))
    batch = weave_packs(parts, pin=False)
    samples = [*itertools.chain.from_iterable(packs)]
    lengths = [len(sample["tokens"]) for sample in samples]
    assert batch["tokens"].tolist() == [row for sample in samples for row in sample["tokens"].tolist()]
    assert batch["tokens"].dtype == torch.int32 and batch["__cu_seqlens__"].dtype == torch.int32
    assert kind == "tensor" or batch["mask"].tolist() == [
        each for sample in samples for each in sample["mask"].tolist()
    ]
    assert batch["__key__"] == [sample["__key__"] for sample in samples]
    assert batch["cls"].tolist() == batch["label"].tolist() == [sample["cls"] for sample in samples]
    assert batch["__lengths__"].tolist() == lengths
    assert batch["__cu_seqlens__"].tolist() == [0, *itertools.accumulate(lengths)]
    assert batch["__position_ids__"].tolist() == [place for length in lengths for place in range(length)]
    assert batch["__segment_ids__"].tolist() == [number for number, length in enumerate(lengths) for _ in range(length)]
    padded, begin = weave_packs(parts, pin=False, pad_to=100), 0
    for row, pack in enumerate(packs):
        length = sum(len(sample["tokens"]) for sample in pack)
        assert padded["__mask__"][row].tolist() == [place < length for place in range(100)]
        for name in ("tokens", "__position_ids__", "__segment_ids__", *(["mask"] if kind == "array" else [])):
            expected = batch[name][begin : begin + length].tolist()
            assert padded[name][row, :length].tolist() == expected
            assert (padded[name][row, length:] == (-1 if name == "__segment_ids__" else 0)).all()
        begin += length
    assert padded["tokens"].shape == (len(packs), 100, 2)


@pytest.mark.parametrize(
    ("samples", "packing"),
    [
        ([(np.ones(3),)], Packing(9, False)),
        ([{"a": 1}], Packing(9, False)),
        ([{"a": np.ones(3)}, {"b": np.ones(3)}], Packing(9, False)),
        ([{"a": np.ones(3), "b": np.ones(2)}], Packing(9, False)),
        ([{"a": np.ones(3)}, {"a": np.ones(3, np.int32)}], Packing(9, False)),
        ([{"a": np.ones((3, 2))}, {"a": np.ones((3, 1))}], Packing(9, False)),
        ([{"a": np.ones(3)}, {"a": torch.ones(3)}], Packing(9, False)),
        ([{"a": np.ones(3)}, {"a": np.ones(3)}], Packing(5, False)),
        ([{"a": np.ones(3)}, {"a": np.ones(3)}], Packing(5, True)),
    ],
    ids=range(9),
)
def test_packs_whose_arrays_cannot_be_joined_or_are_too_long_are_refused(samples, packing):
    with pytest.raises(PipelineError):
        collate_packs(samples, np.array([len(samples)]), packing)


def test_arrays_that_are_longer_than_a_pack_are_truncated_on_request():
    sub_batch = collate_packs([{"a": np.arange(9)}, {"a": np.arange(2)}], np.array([1, 1]), Packing(4, True))
    assert weave_packs([(np.arange(2), sub_batch)], pin=False)["a"].tolist() == [0, 1, 2, 3, 0, 1]
