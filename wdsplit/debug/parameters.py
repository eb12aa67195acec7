"""Are the parameters, and the states of the optimizers, the same on all ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import xxhash

from wdsplit.debug.ranks import CheckError, Ranks, Rendezvous
from wdsplit.debug.tensors import Entry, Part, difference, differing, entry_of, named_parameters
from wdsplit.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    import torch

__all__ = ["check_same_optimizer", "check_same_parameters", "param_hash"]


def param_hash(model_or_state_dict: torch.nn.Module | Mapping[str, Any], *, buffers: bool = False) -> str:
    """Return a hash of all parameters: of their names, dtypes, shapes and bytes.

    The order of the parameters does not count, nor does the device. Of a sharded parameter (DTensor) it takes the part
    that this rank has. It copies one parameter at a time to the CPU.

    Args:
        model_or_state_dict: A torch module; or a dict of tensors by their names, which all count.
        buffers: Of a module, take its buffers too. Those of batch normalisation differ between ranks by design.

    Returns:
        32 hexadecimal digits (xxh3_128).

    Raises:
        InputError: A tensor has no values here that could be compared: on the meta device, not initialised, or sharded
            by FSDP1 or DeepSpeed ZeRO-3.
        MissingDependencyError: torch is not installed.
    """
    return _digest(_model_entries(model_or_state_dict, buffers))


def check_same_parameters(
    model_or_state_dict: torch.nn.Module | Mapping[str, Any],
    *,
    group: Any = None,
    buffers: bool | None = None,
    timeout_s: float = 300.0,
) -> int:
    """Check that parameters and buffers are the same, bit by bit, on all ranks that have them.

    All ranks must call this.

    Args:
        model_or_state_dict: As of `param_hash`.
        group: A process group or DeviceMesh whose ranks are compared; by default all. Ranks of a pipeline have
            different parameters: name a group that has the same.
        buffers: Of a module, compare its buffers too. By default all but those of batch and instance normalisation,
            whose running statistics differ between ranks by design.
        timeout_s: Seconds that a rank waits for the others to call this, too.

    Returns:
        How many parameters and buffers at least one other rank has too: what FSDP shards over all ranks cannot be
        compared.

    Raises:
        CheckError: They differ: it names the first parameter that does, and the ranks. Or ranks did not come.
        InputError: As of `param_hash`, on any rank.
        TopologyError: This process is not in the group.
    """
    return _check_same(
        Rendezvous(Ranks.in_group(group), "check_same_parameters", timeout_s),
        lambda: _model_entries(model_or_state_dict, buffers),
        "parameter",
        "make the model from one seed on all ranks (wdsplit.debug.set_seed(seed, rank=0)), load the checkpoint "
        "on all of them, or broadcast it; later on: each parameter must be in what DDP wraps, and no rank may skip a "
        "step",
    )


def check_same_optimizer(optimizer: torch.optim.Optimizer, *, group: Any = None, timeout_s: float = 300.0) -> int:
    """Check that an optimizer's state and options are the same, bit by bit, on all ranks; all ranks must call this.

    Not for optimizers that shard their state over the ranks in tensors that are no DTensors (ZeRO).

    Args:
        optimizer: The optimizer.
        group: As of `check_same_parameters`.
        timeout_s: As of `check_same_parameters`.

    Returns:
        How many tensors and options at least one other rank has too.

    Raises:
        CheckError: They differ: it names the first that does, as `state.<parameter>.<name>` or `group.<number>.<name>`,
            and the ranks. Or ranks did not come.
        InputError: A tensor has no values here that could be compared, on any rank.
        TopologyError: This process is not in the group.
    """
    return _check_same(
        Rendezvous(Ranks.in_group(group), "check_same_optimizer", timeout_s),
        lambda: _optimizer_entries(optimizer),
        "optimizer value",
        "load the optimizer's checkpoint on all ranks, give all the same options, and let no rank skip a step",
    )


def _check_same(rendezvous: Rendezvous, listed: Callable[[], Iterable[Entry]], what: str, remedy: str) -> int:
    """Compare the entries of all ranks; return how many of them another rank has too.

    Raises:
        CheckError: They differ, or ranks did not come.
    """
    entries: list[Entry] = []

    def summary() -> dict[Part | None, str]:
        entries.extend(listed())
        return _summary(entries)

    summaries = rendezvous.gathered_or_raised(summary)
    holders = Counter(part for digests in summaries for part in digests)
    if not any(differing([digests.get(part) for digests in summaries]) for part in holders):
        return sum(holders[entry.part] > 1 for entry in entries)
    gathered = rendezvous.gathered(entries)
    tables = [{entry.name: entry for entry in own} for own in gathered]
    names = list(dict.fromkeys(name for table in tables for name in table))
    differences = {name: difference([table.get(name) for table in tables], rendezvous.ranks) for name in names}
    found = [(name, text) for name, text in differences.items() if text]
    if found:
        raise CheckError(
            f"the ranks have different {what}s",
            place=f"{what} {found[0][0]!r}",
            expected="the same name, dtype, shape and values on all ranks",
            found=f"{found[0][1]}; in all, {len(found)} of {len(names)} {what}s differ",
            remedy=remedy,
        )
    # Summaries may differ where all is well: two meshes look alike, but their parts lie on other ranks.
    shared = Counter((entry.name, entry.part) for own in gathered for entry in own)
    return sum(shared[entry.name, entry.part] > 1 for entry in entries)


def _summary(entries: Iterable[Entry]) -> dict[Part | None, str]:
    """Return a hash of each part's values, and under None one of what all ranks must have alike: names and kinds."""
    by_part = defaultdict(list)
    for entry in entries:
        by_part[entry.part].append(entry)
    structure = _digest(Entry(entry.name, entry.kind, (), "") for entry in entries)
    return {None: structure, **{part: _digest(members) for part, members in by_part.items()}}


def _digest(entries: Iterable[Entry]) -> str:
    digest = xxhash.xxh3_128()
    for entry in sorted(entries, key=lambda entry: entry.name):
        digest.update(repr((entry.name, entry.kind, entry.part, entry.digest)).encode())
    return digest.hexdigest()


def _model_entries(model: torch.nn.Module | Mapping[str, Any], buffers: bool | None) -> Iterator[Entry]:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingDependencyError.for_extra("torch") from error
    if isinstance(model, torch.nn.Module):
        yield from (entry_of(name, parameter) for name, parameter in named_parameters(model))
        yield from (entry_of(name, buffer) for name, buffer in _named_buffers(model, buffers))
        return
    if not isinstance(model, Mapping):
        raise InputError(
            "no parameters found",
            expected="a torch module, or a dict of tensors such as model.state_dict()",
            found=type(model).__name__,
        )
    for name, tensor in model.items():
        if not isinstance(tensor, torch.Tensor):
            raise InputError(
                "invalid parameter",
                place=f"parameter {name!r}",
                expected="a tensor",
                found=type(tensor).__name__,
                remedy="leave it out of the dict",
            )
        yield entry_of(str(name), tensor)


def _named_buffers(model: torch.nn.Module, buffers: bool | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the buffers of a module: all for True, none for False, those that should be the same on all for None."""
    from torch.nn.modules.batchnorm import _NormBase

    for prefix, module in model.named_modules() if buffers is not False else ():
        if buffers is None and isinstance(module, _NormBase):
            continue
        yield from module.named_buffers(prefix, recurse=False)


def _optimizer_entries(optimizer: torch.optim.Optimizer) -> Iterator[Entry]:
    import torch

    values = optimizer.state_dict()
    named = {f"state.{number}.{name}": value for number, own in values["state"].items() for name, value in own.items()}
    for number, options in enumerate(values["param_groups"]):
        named |= {f"group.{number}.{name}": value for name, value in options.items() if name != "params"}
    for name, value in named.items():
        if isinstance(value, torch.Tensor):
            yield entry_of(name, value)
        elif isinstance(value, (bool, int, float, str, tuple, list, type(None))):
            yield Entry(name, type(value).__name__, (), repr(value))
