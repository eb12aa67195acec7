"""What a rank has of a tensor, as a hash, and which ranks have something else.

Of a sharded tensor (DTensor: FSDP2, tensor parallelism) each rank has a part. Ranks with the same part are compared
with each other, and nothing but hashes leaves a rank.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from wdsplit.debug.ranks import Ranks, names_of
from wdsplit.errors import InputError

if TYPE_CHECKING:
    import torch

__all__ = ["Entry", "Part", "difference", "differing", "entry_of", "local_part", "named_parameters"]

Part = tuple[tuple[str, int, int], ...]
"""Which part of a tensor a rank has: for each dimension of the mesh over which it is sharded its name, its size and the
place there. Empty for the whole."""


@dataclass(frozen=True)
class Entry:
    """A tensor, or the part of it that a rank has.

    Attributes:
        name: Its name.
        kind: Its dtype and shape, as text.
        part: Which part of it.
        digest: A hash of the values.
    """

    name: str
    kind: str
    part: Part
    digest: str


def entry_of(name: str, tensor: torch.Tensor) -> Entry:
    """Return what this rank has of a tensor; it is copied to the CPU.

    The hash is one of the bytes of a contiguous copy: 0.0 and -0.0 differ, and so do different NaNs.

    Raises:
        InputError: It has no values here that could be compared.
    """
    import torch

    part, local = local_part(name, tensor)
    shape = " x ".join(map(str, tensor.shape)) or "scalar"
    plain = local.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    digest = xxhash.xxh3_128_hexdigest(plain.view(torch.uint8).numpy().data if plain.numel() else b"")
    return Entry(name, f"{str(tensor.dtype).removeprefix('torch.')} of {shape}", part, digest)


def local_part(name: str, tensor: torch.Tensor) -> tuple[Part, torch.Tensor]:
    """Return which part of a tensor this rank has, and that part, dense.

    Raises:
        InputError: It has no values here that could be compared.
    """
    import torch

    if torch.nn.parameter.is_lazy(tensor):
        raise _incomparable(name, "not initialised yet", "call the model once first")
    part: Part = ()
    local = tensor.detach()
    if hasattr(tensor, "placements") and hasattr(tensor, "device_mesh"):
        part = _part_of(name, tensor)
        local = local.to_local()  # type: ignore[attr-defined]
    if local.device.type == "meta":
        raise _incomparable(name, "on the meta device: it has no values", "materialise the model first (to_empty)")
    if type(local) not in (torch.Tensor, torch.nn.Parameter):
        raise _incomparable(name, f"a {type(local).__name__}", "pass plain tensors, in a dict")
    return part, local.to_dense() if local.layout != torch.strided else local


def _part_of(name: str, tensor: torch.Tensor) -> Part:
    """Return which part of a DTensor this rank has."""
    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    if any(placement.is_partial() for placement in placements):
        raise _incomparable(name, "a sum that is not reduced yet (Partial)", "compare it after the step")
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise _incomparable(name, "a DTensor of a mesh that this rank is not in", "check it on the ranks of its mesh")
    names = mesh.mesh_dim_names or tuple(map(str, range(mesh.ndim)))
    sharded = [number for number, placement in enumerate(placements) if not placement.is_replicate()]
    return tuple((names[number], mesh.size(number), int(coordinate[number])) for number in sharded)


def named_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield the parameters of a module; each once, under its first name.

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


def _incomparable(name: str, found: str, remedy: str) -> InputError:
    return InputError(
        "cannot compare a parameter",
        place=f"parameter {name!r}",
        expected="a tensor with values, or a DTensor",
        found=found,
        remedy=remedy,
    )


def differing(values: Sequence[Hashable | None]) -> list[int]:
    """Return the indices of the values that differ from most others; None stands for no value, which cannot differ.

    If no value is the most frequent one, all indices are returned.
    """
    counts = Counter(value for value in values if value is not None).most_common()
    if len(counts) < 2:
        return []
    majority = None if counts[0][1] == counts[1][1] else counts[0][0]
    return [index for index, value in enumerate(values) if value is not None and value != majority]


def difference(entries: Sequence[Entry | None], ranks: Ranks) -> str:
    """Describe on which ranks a tensor differs, and in what; nothing if they agree.

    Args:
        entries: What each of the ranks has, None for nothing.
        ranks: The ranks.
    """
    kinds = ["nothing" if entry is None else entry.kind for entry in entries]
    if differing(kinds):
        having = {kind: [rank for rank, own in zip(ranks.members, kinds, strict=True) if own == kind] for kind in kinds}
        return ", ".join(f"{kind} on {names_of(members)}" for kind, members in having.items())
    for part in {entry.part: None for entry in entries if entry is not None}:
        digests = [entry.digest if entry is not None and entry.part == part else None for entry in entries]
        odd = differing(digests)
        if odd:
            names = names_of([ranks.members[index] for index in odd])
            if len(odd) == len(digests) - digests.count(None):
                return f"{names} differ from each other"
            return f"{names} {'differs' if len(odd) == 1 else 'differ'} from the others"
    return ""
