"""Checks that a model's parameters and gradients are the same on all ranks, which exchange only hashes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from wdsplit.debug.ranks import CheckError, Rendezvous, names_of
from wdsplit.errors import InputError, MissingDependencyError
from wdsplit.integers import at_least

if TYPE_CHECKING:
    import torch

__all__ = ["check_same_gradients", "check_same_parameters", "param_hash"]


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
    return _digest({name: _described(name, tensor) for name, tensor in _tensors(model)})


def check_same_parameters(
    model: torch.nn.Module | Mapping[str, Any], *, group: Any = None, timeout_s: float = 300.0
) -> int:
    """Check that parameters and buffers are the same, bit by bit, on all ranks; all ranks must call it.

    Args:
        model: A module or a dict of tensors, as of `param_hash`.
        group: A process group or DeviceMesh whose ranks are compared; by default all. Ranks of a pipeline have
            different parameters: name a group that has the same.
        timeout_s: Seconds that a rank waits for the others to call this.

    Returns:
        Number of parameters that were compared. Those that are sharded (FSDP2, tensor parallelism) are not.

    Raises:
        CheckError: They differ: it names the first parameter that does, and the ranks. Or some ranks did not arrive.
        InputError: As of `param_hash`.
        TopologyError: This process is not in the group.
    """
    remedy = (
        "make the model from one seed on all ranks (wdsplit.debug.set_seed(seed, rank=0)), or load the checkpoint on "
        "all of them; later on: each parameter must be in what DDP wraps, and no rank may skip a step"
    )
    rendezvous = Rendezvous(group, "check_same_parameters", timeout_s)
    own = {name: _described(name, tensor) for name, tensor in _tensors(model) if _is_whole(tensor)}
    return _check_same(rendezvous, own, "parameter", remedy)


def check_same_gradients(
    model: torch.nn.Module, sample: int | None = 8, *, group: Any = None, timeout_s: float = 300.0
) -> int:
    """Check after backward that some gradients are finite, and the same, bit by bit, on all ranks.

    All ranks must call this, after the gradients are reduced: with DDP after `backward`, but not within `no_sync`; with
    a GradScaler after `unscale_`. DDP gives all ranks the same bits.

    Args:
        model: The module, as wrapped by DDP or not.
        sample: Number of parameters to check, evenly spaced and always the same; None for all.
        group: As of `check_same_parameters`.
        timeout_s: As of `check_same_parameters`.

    Returns:
        Number of gradients that were compared.

    Raises:
        CheckError: They differ, or contain NaN or infinity: it names the first, and the ranks. Or some did not arrive.
        InputError: The sample is invalid, or a gradient cannot be compared (see `param_hash`).
        TopologyError: This process is not in the group.
    """
    sample = None if sample is None else at_least(1, "sample", sample, also=", or None")
    trained = [(name, parameter.grad) for name, parameter in _named_parameters(model) if parameter.requires_grad]
    num_sampled = len(trained) if sample is None else min(sample, len(trained))
    rendezvous, own = Rendezvous(group, "check_same_gradients", timeout_s), dict[str, str]()
    for index in np.linspace(0, len(trained) - 1, num_sampled).round().astype(int):
        name, gradient = trained[index]
        if gradient is None or not _is_whole(gradient):
            continue
        num_broken = int((~_local(gradient).isfinite()).sum())
        if num_broken:
            raise CheckError(
                "gradients are not finite",
                place=f"gradient {name!r}",
                found=f"NaN or infinity in {num_broken} of {gradient.numel()} values",
                remedy="look at the loss and the batch of this rank, or lower the learning rate",
            )
        own[name] = _described(name, gradient)
    remedy = "wrap the model in DDP on every rank and train through the wrapper; do not check within no_sync"
    return _check_same(rendezvous, own, "gradient", remedy)


def _check_same(rendezvous: Rendezvous, own: dict[str, str], what: str, remedy: str) -> int:
    """Compare descriptions of tensors between all ranks; return how many there are."""
    if len(set(rendezvous.gathered(_digest(own)))) == 1:  # the usual case needs only a hash from each rank
        return len(own) if len(rendezvous.members) > 1 else 0
    tables: list[dict[str, str]] = rendezvous.gathered(own)
    differing, names = list[tuple[str, str]](), dict.fromkeys(name for table in tables for name in table)
    for name in names:
        ranks_of: dict[str, list[int]] = defaultdict(list)
        for rank, table in zip(rendezvous.members, tables, strict=True):
            ranks_of[table.get(name, "nothing")].append(rank)
        if len(ranks_of) > 1:
            fewest = sorted(ranks_of.items(), key=lambda each: len(each[1]))
            differing.append((name, ", ".join(f"{text} on {names_of(ranks)}" for text, ranks in fewest)))
    raise CheckError(
        f"the ranks have different {what}s",
        place=f"{what} {differing[0][0]!r}",
        expected="the same name, dtype, shape and values on all ranks",
        found=f"{differing[0][1]}; in all, {len(differing)} of {len(names)} {what}s differ",
        remedy=remedy,
    )


def _digest(described: dict[str, str]) -> str:
    return xxhash.xxh3_128_hexdigest(repr(sorted(described.items())).encode())


def _tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers of a model, or the tensors of a dict, with their names."""
    try:
        from torch import nn
    except ModuleNotFoundError as error:
        raise MissingDependencyError.for_extra("torch") from error
    if isinstance(model, nn.Module):
        yield from _named_parameters(model)
        for prefix, module in model.named_modules():
            if not hasattr(module, "track_running_stats"):  # batch and instance normalisation
                yield from module.named_buffers(prefix, recurse=False)
    elif isinstance(model, Mapping):
        yield from ((str(name), tensor) for name, tensor in model.items())
    else:
        expected = "a torch module, or a dict of tensors such as model.state_dict()"
        raise InputError("no parameters found", expected=expected, found=type(model).__name__)


def _is_whole(tensor: Any) -> bool:
    """Tell whether each rank has all of a tensor: it is no DTensor, or one that is replicated."""
    return all(placement.is_replicate() for placement in getattr(tensor, "placements", ()))


def _local(tensor: Any) -> Any:
    """Return what this rank has of a tensor, dense."""
    local = tensor.detach()
    return (local.to_local() if hasattr(local, "to_local") else local).to_dense()


def _described(name: str, tensor: Any) -> str:
    """Return dtype, shape and a hash of the bytes of a tensor: 0.0 and -0.0 differ, as do different NaNs."""
    import torch

    try:
        values = _local(tensor).resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        digest = xxhash.xxh3_128_hexdigest(values.view(torch.uint8).numpy().data if values.numel() else b"")
        shape = " x ".join(map(str, tensor.shape)) or "scalar"
        return f"{str(tensor.dtype).removeprefix('torch.')} of {shape} with hash {digest}"
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:  # torch says what is missing
        raise _incomparable(name, f"{type(tensor).__name__}: {error}") from error


def _named_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield the parameters of a module; each once, under its first name."""
    is_flat = any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())
    for name, parameter in model.named_parameters():
        if is_flat or hasattr(parameter, "ds_id"):  # what a rank has of them, no other rank has
            raise _incomparable(name, "a shard of FSDP1 or DeepSpeed ZeRO-3", "gather it first, or use FSDP2")
        yield name, parameter


def _incomparable(name: str, found: str, remedy: str = "") -> InputError:
    return InputError("cannot compare a parameter", f"parameter {name!r}", "a tensor with values", found, remedy)
