"""Are a model's parameters and gradients, and its optimizer's state, the same on all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from wdsplit.debug.ranks import CheckError, Ranks, Rendezvous
from wdsplit.debug.tensors import Entry, difference, entry_of, local_part, named_parameters
from wdsplit.errors import InputError, MissingDependencyError
from wdsplit.order.split import whole

if TYPE_CHECKING:
    import torch

__all__ = ["check_same_gradients", "check_same_parameters", "param_hash"]


def param_hash(model: torch.nn.Module | torch.optim.Optimizer | Mapping[str, Any]) -> str:
    """Return a hash of all parameters and buffers: of their names, dtypes, shapes and bytes.

    The order of the parameters does not count, nor does the device. Of a sharded parameter (DTensor) it takes the part
    that this rank has. It copies one parameter at a time to the CPU.

    Args:
        model: A torch module, without the running statistics of batch and instance normalisation, which differ between
            ranks by design; a dict of tensors by their names, which all count; or an optimizer: its state and options.

    Returns:
        32 hexadecimal digits (xxh3_128).

    Raises:
        InputError: A tensor has no values here that could be compared: on the meta device, not initialised, or sharded
            by FSDP1 or DeepSpeed ZeRO-3.
        MissingDependencyError: torch is not installed.
    """
    return _digest(_entries(model))


def check_same_parameters(
    model: torch.nn.Module | torch.optim.Optimizer | Mapping[str, Any], *, group: Any = None, timeout_s: float = 300.0
) -> int:
    """Check that parameters and buffers are the same, bit by bit, on all ranks that have them; all ranks must call it.

    Args:
        model: A module, a dict of tensors or an optimizer, as of `param_hash`; not an optimizer that shards its state
            in tensors that are no DTensors (ZeRO).
        group: A process group or DeviceMesh whose ranks are compared; by default all. Ranks of a pipeline have
            different parameters: name a group that has the same.
        timeout_s: Seconds that a rank waits for the others to call this, too.

    Returns:
        How many of them at least one other rank has too: what FSDP shards over all ranks cannot be compared.

    Raises:
        CheckError: They differ: it names the first parameter that does (of an optimizer
            `state.<parameter>.<name>` or `group.<number>.<name>`), and the ranks. Or ranks did not come.
        InputError: As of `param_hash`, on any rank.
        TopologyError: This process is not in the group.
    """
    return _check_same(
        Rendezvous(Ranks.in_group(group), "check_same_parameters", timeout_s),
        lambda: _entries(model),
        "parameter",
        "make the model from one seed on all ranks (wdsplit.debug.set_seed(seed, rank=0)), or load the checkpoint on "
        "all of them; later on: each parameter must be in what DDP wraps, and no rank may skip a step",
    )


def check_same_gradients(
    model: torch.nn.Module, sample: int | None = 8, *, group: Any = None, timeout_s: float = 300.0
) -> int:
    """Check after backward that some gradients are finite, and the same, bit by bit, on all ranks that have them.

    All ranks must call this, after the gradients are reduced: with DDP after `backward`, but not within `no_sync`; with
    a GradScaler after `unscale_`. DDP gives all ranks the same bits.

    Args:
        model: The module, as wrapped by DDP or FSDP2 or not.
        sample: How many parameters, always the same, evenly spaced from the first to the last; None for all.
        group: As of `check_same_parameters`.
        timeout_s: As of `check_same_parameters`.

    Returns:
        How many of them at least one other rank has too.

    Raises:
        CheckError: They differ, or hold NaN or infinity: it names the first, and the ranks. Or ranks did not come.
        InputError: The sample is invalid, or a gradient cannot be compared (see `param_hash`), on any rank.
        TopologyError: This process is not in the group.
    """
    sample = whole(sample)
    if sample is not None and (type(sample) is not int or sample < 1):
        raise InputError("invalid sample", expected="an integer of at least 1, or None", found=repr(sample))
    return _check_same(
        Rendezvous(Ranks.in_group(group), "check_same_gradients", timeout_s),
        lambda: _gradients(model, sample),
        "gradient",
        "wrap the model in DDP on every rank and train through the wrapper; do not check within no_sync",
    )


def _check_same(rendezvous: Rendezvous, entries_of: Callable[[], Iterable[Entry]], what: str, remedy: str) -> int:
    """Compare the entries of all ranks; return how many of them another rank has too.

    Raises:
        CheckError: They differ, or ranks did not come.
    """
    entries: list[Entry] = []

    def digest() -> str:
        entries.extend(entries_of())
        return _digest(entries)

    digests, ranks = rendezvous.gathered_or_raised(digest), rendezvous.ranks
    if len(set(digests)) == 1:  # the usual case needs only a hash from each rank
        return len(entries) if len(ranks) > 1 else 0
    gathered = rendezvous.gathered(entries)
    tables = [{entry.name: entry for entry in own} for own in gathered]
    names = list(dict.fromkeys(name for table in tables for name in table))
    differences = {name: difference([table.get(name) for table in tables], ranks.members) for name in names}
    found = [(name, text) for name, text in differences.items() if text]
    if found:
        raise CheckError(
            f"the ranks have different {what}s",
            place=f"{what} {found[0][0]!r}",
            expected="the same name, dtype, shape and values on all ranks",
            found=f"{found[0][1]}; in all, {len(found)} of {len(names)} {what}s differ",
            remedy=remedy,
        )
    holders = Counter((entry.name, entry.part) for own in gathered for entry in own)
    return sum(holders[entry.name, entry.part] > 1 for entry in entries)


def _digest(entries: Iterable[Entry]) -> str:
    return xxhash.xxh3_128_hexdigest(repr(sorted(entries)).encode())


def _entries(model: Any) -> Iterator[Entry]:
    try:
        import torch
        from torch.nn.modules.batchnorm import _NormBase
    except ModuleNotFoundError as error:
        raise MissingDependencyError.for_extra("torch") from error
    if isinstance(model, torch.nn.Module):
        yield from (entry_of(name, parameter) for name, parameter in named_parameters(model))
        for prefix, module in model.named_modules():
            if not isinstance(module, _NormBase):
                yield from (entry_of(name, buffer) for name, buffer in module.named_buffers(prefix, recurse=False))
    elif isinstance(model, torch.optim.Optimizer):
        state = model.state_dict()
        places = {f"state.{number}": values for number, values in state["state"].items()}
        places |= {f"group.{number}": options for number, options in enumerate(state["param_groups"])}
        for place, values in places.items():
            for name, value in values.items():
                if isinstance(value, torch.Tensor):
                    yield entry_of(f"{place}.{name}", value)
                elif isinstance(value, (bool, int, float, str, tuple, list, type(None))):
                    yield Entry(f"{place}.{name}", type(value).__name__, digest=repr(value))
    elif isinstance(model, Mapping):
        yield from (entry_of(str(name), tensor) for name, tensor in model.items())
    else:
        expected = "a torch module, an optimizer, or a dict of tensors such as model.state_dict()"
        raise InputError("no parameters found", expected=expected, found=type(model).__name__)


def _gradients(model: torch.nn.Module, sample: int | None) -> Iterator[Entry]:
    """Yield the gradients of some parameters.

    Raises:
        CheckError: One is not finite.
    """
    trained = [(name, parameter) for name, parameter in named_parameters(model) if parameter.requires_grad]
    num_sampled = len(trained) if sample is None else min(sample, len(trained))
    for index in np.linspace(0, len(trained) - 1, num_sampled).round().astype(int):
        name, parameter = trained[index]
        if parameter.grad is None:
            yield Entry(name, "no gradient")
            continue
        entry, values = entry_of(name, parameter.grad), local_part(parameter.grad)
        num_broken = int((~values.isfinite()).sum())
        if num_broken:
            raise CheckError(
                "gradients are not finite",
                place=f"gradient {name!r}",
                found=f"NaN or infinity in {num_broken} of {values.numel()} values",
                remedy="look at the loss and the batch of this rank, or lower the learning rate",
            )
        yield entry
