"""Hashes of parameters, and spot checks of gradients, in one process."""

import re

import pytest
import torch

from wdsplit import debug
from wdsplit.errors import InputError


def model_of():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model[0].weight[0, 0].mul_(1.0000002),
        lambda model: model.double(),
        lambda model: setattr(model[0], "weight", torch.nn.Parameter(model[0].weight.reshape(3, 4))),
        lambda model: model.add_module("more", torch.nn.Linear(1, 1)),
        lambda model: model[1].bias[0].copy_(-0.0),
    ],
)
def test_a_hash_depends_on_names_types_shapes_and_each_bit(change):
    model = model_of()
    with torch.no_grad():
        change(model)
    assert debug.param_hash(model) != debug.param_hash(model_of())


def test_a_hash_does_not_depend_on_order_layout_gradients_or_running_statistics():
    model = model_of()
    expected = debug.param_hash(model)
    named = dict(reversed(list(model.named_parameters())))
    strided = {name: torch.stack([value, value], -1)[..., 0].detach() for name, value in named.items()}
    assert not strided["0.weight"].is_contiguous()
    assert debug.param_hash(named) == debug.param_hash(strided) == expected
    model(torch.ones(2, 3)).sum().backward()
    assert debug.param_hash(model) == expected
    assert debug.param_hash(model.state_dict()) != debug.param_hash(model_of().state_dict())
    dense = torch.tensor([[0.0, 2.0], [0.0, 0.0]])
    assert debug.param_hash({"a": dense.to_sparse()}) == debug.param_hash({"a": dense})
    numbers = torch.tensor([1 + 2j])
    assert debug.param_hash({"a": numbers.conj()}) == debug.param_hash({"a": numbers.conj().resolve_conj()})


def test_all_types_are_hashed_also_empty_ones_and_scalars():
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool):
        for shape in ((), (0,), (3, 2)):
            same = {debug.param_hash({"a": torch.zeros(shape).to(dtype)}) for _ in range(2)}
            assert len(same) == 1
        one, zero = (debug.param_hash({"a": torch.full((2,), value).to(dtype)}) for value in (1.0, 0.0))
        assert one != zero


class Sharded(torch.nn.Linear):
    """A module with a parameter as DeepSpeed ZeRO-3 leaves it."""

    def __init__(self):
        super().__init__(2, 2)
        self.weight = torch.nn.Parameter(torch.empty(0))
        self.weight.ds_id = 0


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (torch.nn.Linear(2, 2, device="meta"), "out of meta tensor"),
        (torch.nn.LazyLinear(2), "uninitialized parameter"),
        (Sharded(), "ZeRO-3"),
        ({"step": 3}, "found: int"),
        ([1, 2], "list"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_what_has_no_values_to_compare_is_refused(model, found):
    for check in (debug.param_hash, debug.check_same_parameters):
        with pytest.raises(InputError, match=found):
            check(model)


def test_a_spot_check_looks_at_the_first_and_the_last_parameter():
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(20)))
    model(torch.ones(1, 2)).sum().backward()
    debug.check_same_gradients(model, sample=None)
    for name, sample in (("0.weight", 2), ("19.bias", 2), ("7.bias", None)):
        gradient = model.get_parameter(name).grad
        kept, gradient[0] = gradient[0].clone(), torch.inf
        with pytest.raises(debug.CheckError, match=re.escape(name)):
            debug.check_same_gradients(model, sample)
        gradient[0] = kept
