"""Checks that a model's parameters and gradients are the same on all ranks.

Each rank has a part of a sharded tensor (DTensor: FSDP2, tensor parallelism). Ranks with the same part are compared
with each other, and ranks exchange only hashes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash

from wdsplit.debug.ranks import CheckError, Rendezvous, names_of
from wdsplit.errors import InputError, MissingDependencyError
from wdsplit.order.split import whole

if TYPE_CHECKING:
    import torch

__all__ = ["Entry", "check_same_gradients", "check_same_parameters", "difference", "param_hash"]

Part = tuple[tuple[str, int, int], ...]
"""Which part of a tensor a rank has: for each mesh dimension that shards it the name, the size and the place there."""


class Entry(NamedTuple):
    """A tensor, or the part of it that a rank has."""

    name: str
    kind: str  # dtype and shape
    part: Part = ()  # empty for the whole
    digest: str = ""  # of the values


def param_hash(model: torch.nn.Module | Mapping[str, Any]) -> str:
    """Return a hash of all parameters and buffers: names, dtypes, shapes and bytes.

    The order and the device of the parameters do not matter. Of a sharded parameter (DTensor) it hashes the part
    that this rank has. It copies one parameter at a time to the CPU.

    Args:
        model: A torch module, without the running statistics of batch and instance normalisation, which differ between
            ranks by design; or a dict of tensors by their names, which all count.

    Returns:
        32 hexadecimal digits (xxh3_128).

    Raises:
        InputError: A tensor has no values here that could be compared: on the meta device, not initialised, or sharded
            by FSDP1 or DeepSpeed ZeRO-3.
        MissingDependencyError: torch is not installed.
    """
    return _digest(_entries(model))


def check_same_parameters(
    model: torch.nn.Module | Mapping[str, Any], *, group: Any = None, timeout_s: float = 300.0
) -> int:
    """Check that parameters and buffers are the same, bit by bit, on all ranks that have them; all ranks must call it.

    Args:
        model: A module or a dict of tensors, as of `param_hash`.
        group: A process group or DeviceMesh whose ranks are compared; by default all. Ranks of a pipeline have
            different parameters: name a group that has the same.
        timeout_s: Seconds that a rank waits for the others to call this.

    Returns:
        Number of parameters that at least one other rank has too; what FSDP shards over all ranks is not compared.

    Raises:
        CheckError: They differ: it names the first parameter that does, and the ranks. Or some ranks did not arrive.
        InputError: As of `param_hash`, on any rank.
        TopologyError: This process is not in the group.
    """
    remedy = (
        "make the model from one seed on all ranks (wdsplit.debug.set_seed(seed, rank=0)), or load the checkpoint on "
        "all of them; later on: each parameter must be in what DDP wraps, and no rank may skip a step"
    )
    rendezvous = Rendezvous(group, "check_same_parameters", timeout_s)
    return _check_same(rendezvous, lambda: _entries(model), "parameter", remedy)


def check_same_gradients(
    model: torch.nn.Module, sample: int | None = 8, *, group: Any = None, timeout_s: float = 300.0
) -> int:
    """Check after backward that some gradients are finite, and the same, bit by bit, on all ranks that have them.

    All ranks must call this, after the gradients are reduced: with DDP after `backward`, but not within `no_sync`; with
    a GradScaler after `unscale_`. DDP gives all ranks the same bits.

    Args:
        model: The module, as wrapped by DDP or FSDP2 or not.
        sample: Number of parameters to check, evenly spaced and always the same; None for all.
        group: As of `check_same_parameters`.
        timeout_s: As of `check_same_parameters`.

    Returns:
        Number of gradients that at least one other rank has too.

    Raises:
        CheckError: They differ, or contain NaN or infinity: it names the first, and the ranks. Or some did not arrive.
        InputError: The sample is invalid, or a gradient cannot be compared (see `param_hash`), on any rank.
        TopologyError: This process is not in the group.
    """
    sample = whole(sample)
    if sample is not None and (type(sample) is not int or sample < 1):
        raise InputError("invalid sample", expected="an integer of at least 1, or None", found=repr(sample))
    remedy = "wrap the model in DDP on every rank and train through the wrapper; do not check within no_sync"
    rendezvous = Rendezvous(group, "check_same_gradients", timeout_s)
    return _check_same(rendezvous, lambda: _gradients(model, sample), "gradient", remedy)


def _check_same(rendezvous: Rendezvous, entries_of: Callable[[], Iterable[Entry]], what: str, remedy: str) -> int:
    """Compare the entries of all ranks; return how many of them another rank has too."""
    entries: list[Entry] = []

    def digest() -> str:
        entries.extend(entries_of())
        return _digest(entries)

    if len(set(rendezvous.gathered_or_raised(digest))) == 1:  # the usual case needs only a hash from each rank
        return len(entries) if len(rendezvous.members) > 1 else 0
    gathered = rendezvous.gathered(entries)
    tables = [{entry.name: entry for entry in own} for own in gathered]
    names = dict.fromkeys(name for table in tables for name in table)
    differences = {name: difference([table.get(name) for table in tables], rendezvous.members) for name in names}
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
    except ModuleNotFoundError as error:
        raise MissingDependencyError.for_extra("torch") from error
    nn = torch.nn
    normalisations = (
        *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
        *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    )
    if isinstance(model, torch.nn.Module):
        yield from (_entry_of(name, parameter) for name, parameter in _named_parameters(model))
        for prefix, module in model.named_modules():
            if not isinstance(module, normalisations):
                yield from (_entry_of(name, buffer) for name, buffer in module.named_buffers(prefix, recurse=False))
    elif isinstance(model, Mapping):
        yield from (_entry_of(str(name), tensor) for name, tensor in model.items())
    else:
        expected = "a torch module, or a dict of tensors such as model.state_dict()"
        raise InputError("no parameters found", expected=expected, found=type(model).__name__)


def _gradients(model: torch.nn.Module, sample: int | None) -> Iterator[Entry]:
    """Yield the gradients of some parameters; one that is not finite is a CheckError."""
    trained = [(name, parameter) for name, parameter in _named_parameters(model) if parameter.requires_grad]
    num_sampled = len(trained) if sample is None else min(sample, len(trained))
    for index in np.linspace(0, len(trained) - 1, num_sampled).round().astype(int):
        name, parameter = trained[index]
        if parameter.grad is None:
            yield Entry(name, "no gradient")
            continue
        entry, values = _entry_of(name, parameter.grad), _local_part(parameter.grad)
        num_broken = int((~values.isfinite()).sum())
        if num_broken:
            raise CheckError(
                "gradients are not finite",
                place=f"gradient {name!r}",
                found=f"NaN or infinity in {num_broken} of {values.numel()} values",
                remedy="look at the loss and the batch of this rank, or lower the learning rate",
            )
        yield entry


def _entry_of(name: str, tensor: torch.Tensor) -> Entry:
    """Return what this rank has of a tensor; it is copied to the CPU.

    The hash is one of the bytes of a contiguous copy: 0.0 and -0.0 differ, and so do different NaNs.
    """
    import torch

    try:
        part: Part = ()
        if hasattr(tensor, "placements"):  # a DTensor
            mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
            coordinate = mesh.get_coordinate()
            if coordinate is None or any(placement.is_partial() for placement in placements):
                raise ValueError("it is not reduced yet (Partial), or its mesh is without this rank")
            names = mesh.mesh_dim_names or tuple(map(str, range(mesh.ndim)))
            sharded = [number for number, placement in enumerate(placements) if not placement.is_replicate()]
            part = tuple((names[number], mesh.size(number), int(coordinate[number])) for number in sharded)
        values = _local_part(tensor).resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        digest = xxhash.xxh3_128_hexdigest(values.view(torch.uint8).numpy().data if values.numel() else b"")
        shape = " x ".join(map(str, tensor.shape)) or "scalar"
        return Entry(name, f"{str(tensor.dtype).removeprefix('torch.')} of {shape}", part, digest)
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:  # torch says what is missing
        raise _incomparable(name, f"{type(tensor).__name__}: {error}") from error


def _local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this rank has, dense."""
    local: torch.Tensor = tensor.detach()
    return (local.to_local() if hasattr(local, "to_local") else local).to_dense()


def _named_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield the parameters of a module; each once, under its first name."""
    is_flat = any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())
    for name, parameter in model.named_parameters():
        if is_flat or hasattr(parameter, "ds_id"):  # what a rank has of them, no other rank has
            raise _incomparable(name, "a shard of FSDP1 or DeepSpeed ZeRO-3", "gather it first, or use FSDP2")
        yield name, parameter


def _incomparable(name: str, found: str, remedy: str = "") -> InputError:
    expected = "a tensor with values, or a DTensor"
    return InputError("cannot compare a parameter", f"parameter {name!r}", expected, found, remedy)


def difference(entries: Sequence[Entry | None], members: Sequence[int]) -> str:
    """Describe which ranks have what of a tensor, the fewest ranks first; empty if those with the same part agree.

    Args:
        entries: What each rank has, None for nothing.
        members: The ranks.
    """
    versions: dict[Part | None, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, entry in zip(members, entries, strict=True):
        versions[None]["nothing" if entry is None else entry.kind].append(rank)
        if entry is not None:
            versions[entry.part][f"values {entry.digest}"].append(rank)
    for ranks in versions.values():  # kinds first
        if len(ranks) > 1:
            fewest = sorted(ranks.items(), key=lambda version: len(version[1]))
            return ", ".join(f"{version:.40} on {names_of(own)}" for version, own in fewest)
    return ""
