import numpy as np
import pytest
import torch

from checks import names_in, outcomes
from loader_kinds import every_kind
from made_datasets import converted, images_table
from wdsplit.errors import InputError, PipelineError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader

# Without torch


@pytest.fixture(scope="module")
def without_torch(numbers):
    return outcomes("numpy_checks.py", numbers, ["torch"])


@pytest.mark.parametrize("check", names_in("numpy_checks.py"))
def test_without_torch(without_torch, check):
    assert without_torch[check] == ""


# With torch, but asked for arrays


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return converted(tmp_path_factory.mktemp("images"), images_table(30), key="name", shards=3, lanes=3)


@every_kind
@pytest.mark.parametrize("decoder", ["rgb8", "torchrgb8"])
def test_arrays_are_the_tensors_of_the_same_loader(images, options, decoder):
    dataset = Dataset(images).decode(decoder)
    tensors = Loader(dataset, 8, **options)
    arrays = Loader(dataset, 8, output="numpy", **options)
    for expected, found in zip(tensors, arrays, strict=True):
        assert expected.keys() == found.keys()
        for name, column in expected.items():
            if isinstance(column, torch.Tensor):
                assert isinstance(found[name], np.ndarray)
                assert found[name].dtype == column.numpy().dtype
                assert (found[name] == column.numpy()).all()
            else:
                assert found[name] == column


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}])
def test_tensors_of_a_dtype_that_numpy_has_not_stay_tensors_or_are_refused(numbers, options):
    dataset = Dataset(numbers).decode().map(as_bfloat16)
    for batch in Loader(dataset, 8, **options):
        assert batch["x"].dtype == torch.bfloat16
        assert batch["x"].tolist() == batch["cls"].tolist()
    with pytest.raises(PipelineError, match="'x' cannot be stacked") as caught:
        next(iter(Loader(dataset, 8, output="numpy", **options)))
    assert "torch.bfloat16" in caught.value.found


def as_bfloat16(sample):
    return {"cls": sample["cls"], "x": torch.tensor(float(sample["cls"]), dtype=torch.bfloat16)}


def test_arrays_of_a_dtype_that_torch_has_not_are_refused_for_tensors(numbers):
    dataset = Dataset(numbers).map(as_longdouble)
    with pytest.raises(PipelineError, match="'x' cannot be stacked") as caught:
        next(iter(Loader(dataset, 8)))
    assert caught.value.expected == "arrays of a dtype that torch has"
    assert next(iter(Loader(dataset, 8, output="numpy")))["x"].dtype == np.longdouble


def as_longdouble(sample):
    return {"x": np.longdouble(1)}


def test_an_unknown_output_is_refused(numbers):
    with pytest.raises(InputError, match="invalid Loader arguments") as caught:
        Loader(Dataset(numbers), 8, output="jax")
    assert "output = 'jax'" in caught.value.found
