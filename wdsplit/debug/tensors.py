"""What this rank has of a tensor, as a hash, and how that differs between ranks.

Of a sharded tensor (DTensor: FSDP2, tensor parallelism) each rank has a part. Ranks with the same part are compared
with each other, and nothing but hashes leaves a rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from wdsplit.debug.ranks import names_of
from wdsplit.errors import InputError

if TYPE_CHECKING:
    import torch

__all__ = ["Entry", "Part", "difference", "entry_of", "local_part", "named_parameters"]

Part = tuple[tuple[str, int, int], ...]
"""Which part of a tensor a rank has: for each mesh dimension that shards it the name, the size and the place there."""


class Entry(NamedTuple):
    """A tensor, or the part of it that a rank has.

    Attributes:
        name: Its name.
        kind: Its dtype and shape, as text.
        part: Which part of it; empty for the whole.
        digest: A hash of the values.
    """

    name: str
    kind: str
    part: Part = ()
    digest: str = ""


def entry_of(name: str, tensor: torch.Tensor) -> Entry:
    """Return what this rank has of a tensor; it is copied to the CPU.

    The hash is one of the bytes of a contiguous copy: 0.0 and -0.0 differ, and so do different NaNs.

    Raises:
        InputError: It has no values here that could be compared: not initialised, on the meta device, or no tensor.
    """
    import torch

    try:
        part = _part_of(tensor)
        values = local_part(tensor).resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        digest = xxhash.xxh3_128_hexdigest(values.view(torch.uint8).numpy().data if values.numel() else b"")
        shape = " x ".join(map(str, tensor.shape)) or "scalar"
        return Entry(name, f"{str(tensor.dtype).removeprefix('torch.')} of {shape}", part, digest)
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:  # torch says what is missing
        raise InputError(
            "cannot compare a parameter",
            place=f"parameter {name!r}",
            expected="a tensor with values, or a DTensor",
            found=f"{type(tensor).__name__}: {error}",
        ) from error


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this rank has, dense."""
    local: torch.Tensor = tensor.detach()
    return (local.to_local() if hasattr(local, "to_local") else local).to_dense()


def _part_of(tensor: torch.Tensor) -> Part:
    """Return which part of a DTensor this rank has; empty for the whole of a plain tensor."""
    if not hasattr(tensor, "placements"):
        return ()
    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    coordinate = mesh.get_coordinate()
    if coordinate is None or any(placement.is_partial() for placement in placements):
        raise ValueError("it is not reduced yet (Partial), or its mesh is without this rank")
    names = mesh.mesh_dim_names or tuple(map(str, range(mesh.ndim)))
    sharded = [number for number, placement in enumerate(placements) if not placement.is_replicate()]
    return tuple((names[number], mesh.size(number), int(coordinate[number])) for number in sharded)


def named_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield the parameters of a module; each once, under its first name.

    Raises:
        InputError: FSDP1 or DeepSpeed ZeRO-3 has sharded them: what a rank has of them, no other rank has.
    """
    is_flat = any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())
    for name, parameter in model.named_parameters():
        if is_flat or hasattr(parameter, "ds_id"):
            raise InputError(
                "cannot compare a parameter",
                place=f"parameter {name!r}",
                expected="the whole parameter, or a DTensor",
                found="a shard of FSDP1 or DeepSpeed ZeRO-3",
                remedy="gather it first (FSDP.state_dict_type with FULL_STATE_DICT, or deepspeed.zero."
                "GatheredParameters) and pass the state dict; or use FSDP2 (fully_shard)",
            )
        yield name, parameter


def difference(entries: Sequence[Entry | None], members: Sequence[int]) -> str:
    """Describe which ranks have what of a tensor, the fewest ranks first; empty if those with the same part agree.

    Args:
        entries: What each rank has, None for nothing.
        members: The ranks.
    """
    by_kind: dict[str, list[int]] = defaultdict(list)
    by_part: dict[Part, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, entry in zip(members, entries, strict=True):
        by_kind["nothing" if entry is None else entry.kind].append(rank)
        if entry is not None:
            by_part[entry.part][f"values {entry.digest}"].append(rank)
    for ranks_by_version in (by_kind, *by_part.values()):
        if len(ranks_by_version) > 1:
            versions = sorted(ranks_by_version.items(), key=lambda version: len(version[1]))
            return ", ".join(f"{version:.40} on {names_of(ranks)}" for version, ranks in versions)
    return ""
