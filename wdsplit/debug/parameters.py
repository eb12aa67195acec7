"""Are the parameters the same on all ranks: hashes of names, types, shapes and bytes.

Of a sharded parameter (DTensor: FSDP2, tensor parallelism) each rank has a part. Ranks that have the same part are
compared with each other, and nothing is gathered but hashes.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xxhash

from wdsplit.debug.ranks import CheckError, Ranks, Rendezvous, names_of
from wdsplit.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    import torch

__all__ = [
    "Part",
    "check_same_parameters",
    "differing",
    "local_part",
    "named_parameters",
    "odd_ones",
    "param_hash",
    "tensor_hash",
]

Part = tuple[tuple[str, int, int], ...]
"""Which part of a tensor a rank has: for each dimension of the mesh over which it is sharded its name, its size and the
place there. Empty for the whole."""


@dataclass(frozen=True)
class _Entry:
    """A tensor, or the part of it that a rank has."""

    name: str
    kind: str
    part: Part
    digest: str


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
    return _digest(sorted(_entries(model_or_state_dict, buffers), key=lambda entry: entry.name))


def check_same_parameters(
    model_or_state_dict: torch.nn.Module | Mapping[str, Any],
    *,
    group: Any = None,
    buffers: bool = False,
    timeout_s: float = 300.0,
) -> int:
    """Check that the parameters are the same, bit by bit, on all ranks that have them; all ranks must call this.

    Args:
        model_or_state_dict: As of `param_hash`.
        group: A process group or DeviceMesh whose ranks are compared; by default all. Ranks of a pipeline have
            different parameters: name a group that has the same.
        buffers: As of `param_hash`.
        timeout_s: How long a rank waits for the others to call this, too.

    Returns:
        How many parameters at least one other rank has too: what FSDP shards over all ranks cannot be compared.

    Raises:
        CheckError: They differ: it names the first parameter that does, and the ranks. Or ranks did not come.
        InputError: As of `param_hash`, on any rank.
        TopologyError: This process is not in the group.
    """
    rendezvous = Rendezvous(Ranks.of(group), "check_same_parameters", timeout_s)
    entries: list[_Entry] = []

    def summary() -> tuple[str, dict[Part, str]]:
        entries.extend(_entries(model_or_state_dict, buffers))
        return _summary(entries)

    summaries = rendezvous.gathered_or_raised(summary)
    parts = Counter(part for _, digests in summaries for part in digests)
    is_same = len({structure for structure, _ in summaries}) == 1 and not any(
        differing([digests.get(part) for _, digests in summaries]) for part in parts
    )
    if is_same:
        return sum(parts[entry.part] > 1 for entry in entries)
    gathered = rendezvous.gathered(entries)
    _refuse_differences(rendezvous.ranks, gathered)  # there are none if two meshes look alike, and their parts do not
    holders = Counter((entry.name, entry.part) for own in gathered for entry in own)
    return sum(holders[entry.name, entry.part] > 1 for entry in entries)


def _summary(entries: Sequence[_Entry]) -> tuple[str, dict[Part, str]]:
    """Return a hash of what all ranks must have alike, and of each part one of the bytes."""
    by_part = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry.name):
        by_part[entry.part].append(entry)
    structure = _digest([_Entry(entry.name, entry.kind, (), "") for entry in entries])
    return structure, {part: _digest(members) for part, members in by_part.items()}


def differing(values: Sequence[Hashable | None]) -> list[int]:
    """Return the places of the values that differ from most others; None stands for no value, which cannot differ.

    If no value is the most frequent one, all places are returned.
    """
    counts = Counter(value for value in values if value is not None).most_common()
    if len(counts) < 2:
        return []
    most = None if counts[0][1] == counts[1][1] else counts[0][0]
    return [place for place, value in enumerate(values) if value is not None and value != most]


def _refuse_differences(ranks: Ranks, entries: list[list[_Entry]]) -> None:
    """Raise CheckError for the first tensor that differs, as the first rank lists them."""
    tables = [{entry.name: entry for entry in own} for own in entries]
    names = list(dict.fromkeys(name for table in tables for name in table))
    found = [(name, difference) for name in names if (difference := _difference(name, tables, ranks))]
    if not found:
        return
    name, difference = found[0]
    raise CheckError(
        "the ranks have different parameters",
        place=f"parameter {name!r}",
        expected="the same name, dtype, shape and values on all ranks",
        found=f"{difference}; in all, {len(found)} of {len(names)} parameters differ",
        remedy="make the model from one seed on all ranks (wdsplit.debug.set_seed(seed, rank=0)), load the checkpoint "
        "on all of them, or broadcast it; later on: each parameter must be in what DDP wraps, and no rank may skip a "
        "step",
    )


def _difference(name: str, tables: list[dict[str, _Entry]], ranks: Ranks) -> str:
    """Say on which ranks the tensor of this name is another, and in what; nothing if they agree."""
    own = [table.get(name) for table in tables]
    kinds = ["nothing" if entry is None else entry.kind for entry in own]
    if differing(kinds):
        members = defaultdict(list)
        for rank, kind in zip(ranks.members, kinds, strict=True):
            members[kind].append(rank)
        return ", ".join(f"{kind} on {names_of(having)}" for kind, having in members.items())
    for part in {entry.part: None for entry in own if entry is not None}:
        digests = [entry.digest if entry is not None and entry.part == part else None for entry in own]
        if odd := differing(digests):
            return odd_ones(ranks, odd, sum(digest is not None for digest in digests))
    return ""


def odd_ones(ranks: Ranks, odd: Sequence[int], num_compared: int) -> str:
    """Say which ranks differ from the others, or from each other."""
    names = names_of([ranks.members[place] for place in odd])
    if len(odd) == num_compared:
        return f"{names} differ from each other"
    return f"{names} {'differs' if len(odd) == 1 else 'differ'} from the others"


def _digest(entries: Sequence[_Entry]) -> str:
    digest = xxhash.xxh3_128()
    for entry in entries:
        digest.update(repr((entry.name, entry.kind, entry.part, entry.digest)).encode())
    return digest.hexdigest()


def _entries(model: torch.nn.Module | Mapping[str, Any], buffers: bool) -> Iterator[_Entry]:
    for name, tensor in _named_tensors(model, buffers):
        part, local = local_part(name, tensor)
        shape = " x ".join(map(str, tensor.shape)) or "scalar"
        yield _Entry(name, f"{str(tensor.dtype).removeprefix('torch.')} of {shape}", part, tensor_hash(local))


def _named_tensors(model: torch.nn.Module | Mapping[str, Any], buffers: bool) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingDependencyError.for_extra("torch") from error
    if isinstance(model, torch.nn.Module):
        yield from named_parameters(model)
        yield from model.named_buffers() if buffers else ()
        return
    if not isinstance(model, Mapping):
        raise InputError(
            "there are no parameters in this",
            expected="a torch module, or a dict of tensors such as model.state_dict()",
            found=type(model).__name__,
        )
    for name, tensor in model.items():
        if not isinstance(tensor, torch.Tensor):
            raise _incomparable(name, f"{type(tensor).__name__}, which is no tensor", "leave it out of the dict")
        yield str(name), tensor


def named_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Give the parameters of a module; each once, under its first name.

    Raises:
        InputError: They are sharded in a way that hides what a rank has of them.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    wrapper = getattr(fsdp, "FullyShardedDataParallel", None)
    if wrapper is not None and any(isinstance(module, wrapper) for module in model.modules()):
        raise _incomparable(
            "FullyShardedDataParallel",
            "flat shards of FSDP1, which no other rank has",
            "gather them first, and pass the state dict: with FSDP.state_dict_type(model, "
            "StateDictType.FULL_STATE_DICT): model.state_dict(); or use FSDP2 (fully_shard)",
        )
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "ds_id"):
            raise _incomparable(
                name, "a shard of DeepSpeed ZeRO-3", "gather it first: deepspeed.zero.GatheredParameters"
            )
        yield name, parameter


def local_part(name: str, tensor: torch.Tensor) -> tuple[Part, torch.Tensor]:
    """Return which part of a tensor this rank has, and that part.

    Raises:
        InputError: It has no values here that could be compared.
    """
    import torch

    if torch.nn.parameter.is_lazy(tensor):
        raise _incomparable(name, "not initialised yet", "call the model once first")
    part: Part = ()
    local = tensor.detach()
    if hasattr(tensor, "placements") and hasattr(tensor, "device_mesh"):
        if any(placement.is_partial() for placement in tensor.placements):
            raise _incomparable(name, "a sum that is not reduced yet (Partial)", "compare it after the step")
        coordinate = tensor.device_mesh.get_coordinate()
        sharded = [number for number, placement in enumerate(tensor.placements) if not placement.is_replicate()]
        if coordinate is None:
            raise _incomparable(
                name, "a DTensor of a mesh that this rank is not in", "check it on the ranks of its mesh"
            )
        mesh = tensor.device_mesh
        names = mesh.mesh_dim_names or tuple(map(str, range(mesh.ndim)))
        part = tuple((names[number], mesh.size(number), int(coordinate[number])) for number in sharded)
        local = local.to_local()  # type: ignore[attr-defined]
    if local.device.type == "meta":
        raise _incomparable(name, "on the meta device: it has no values", "materialise the model first (to_empty)")
    if type(local) not in (torch.Tensor, torch.nn.Parameter):
        raise _incomparable(name, f"a {type(local).__name__}", "pass plain tensors, in a dict")
    return part, local


def tensor_hash(tensor: torch.Tensor) -> str:
    """Return a hash of a tensor's bytes as they stand in a contiguous copy: 0.0 and -0.0 differ, and so do NaNs."""
    import torch

    dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
    plain = dense.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    digest = xxhash.xxh3_128()
    if plain.numel():
        digest.update(plain.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _incomparable(name: str, found: str, remedy: str) -> InputError:
    return InputError(
        "a parameter cannot be compared",
        place=f"parameter {name!r}",
        expected="a tensor with values, or a DTensor",
        found=found,
        remedy=remedy,
    )
