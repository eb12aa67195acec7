"""Are the gradients the same on all ranks after backward: a spot check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsplit.debug.ranks import CheckError, Ranks, Rendezvous, listed
from wdsplit.debug.tensors import Entry, difference, entry_of, local_part, named_parameters
from wdsplit.errors import InputError
from wdsplit.order.split import whole

if TYPE_CHECKING:
    import torch

__all__ = ["check_same_gradients"]

_MAX_LISTED = 5


@dataclass(frozen=True)
class _Gradient:
    """A rank's gradient of a parameter, or its part of it.

    Attributes:
        entry: Its name and a hash of its values.
        norm: Their Euclidean norm, in float64, without values that are not finite.
        nans: How many are NaN.
        infinities: How many are infinite.
    """

    entry: Entry
    norm: float = 0.0
    nans: int = 0
    infinities: int = 0


def check_same_gradients(
    model: torch.nn.Module,
    sample: int | None = 8,
    *,
    tolerance: float = 0.0,
    group: Any = None,
    timeout_s: float = 300.0,
) -> int:
    """Check after backward that some gradients are finite, and the same on all ranks that have them.

    All ranks must call this, after the gradients are reduced: with DDP after `backward`, but not within `no_sync`; with
    a GradScaler after `unscale_`. DDP gives all ranks the same bits.

    Args:
        model: The module, as wrapped by DDP or FSDP2 or not.
        sample: How many parameters, evenly spaced from the first to the last; None for all. They are the same ones
            each time.
        tolerance: How far the norms may be apart, as a share of the largest, 0 <= tolerance < 1; 0 for the same bits.
        group: A process group or DeviceMesh whose ranks are compared; by default all.
        timeout_s: Seconds that a rank waits for the others to call this, too.

    Returns:
        How many parameters were checked.

    Raises:
        CheckError: They differ, or hold NaN or infinity: it names the parameters, the ranks and the norms. Or ranks did
            not come.
        InputError: An argument is invalid, or a gradient cannot be compared (see `param_hash`), on any rank.
        TopologyError: This process is not in the group.
    """
    sample = whole(sample)
    if sample is not None and (type(sample) is not int or sample < 1):
        raise InputError("invalid sample", expected="an integer of at least 1, or None", found=repr(sample))
    if not 0 <= tolerance < 1:
        raise InputError("invalid tolerance", expected="0 <= tolerance < 1", found=repr(tolerance))
    rendezvous = Rendezvous(Ranks.in_group(group), "check_same_gradients", timeout_s)
    ranks = rendezvous.ranks
    gathered = rendezvous.gathered_or_raised(lambda: list(_gradients(model, sample)))
    names = [gradient.entry.name for gradient in gathered[0]]
    if any([gradient.entry.name for gradient in own] != names for own in gathered):
        raise _error("the ranks have different parameters", ["their names differ: see check_same_parameters"], 1)
    by_parameter = dict(zip(names, zip(*gathered, strict=True), strict=True))
    broken = [f"{name!r}: {text}" for name, own in by_parameter.items() if (text := _not_finite(own, ranks))]
    if broken:
        raise _error("gradients are not finite", broken, len(names))
    unequal = [f"{name!r}: {text}" for name, own in by_parameter.items() if (text := _unequal(own, ranks, tolerance))]
    if unequal:
        raise _error("the ranks have different gradients", unequal, len(names))
    return len(names)


def _gradients(model: torch.nn.Module, sample: int | None) -> Iterator[_Gradient]:
    import torch

    trained = [(name, parameter) for name, parameter in named_parameters(model) if parameter.requires_grad]
    indices = range(len(trained))
    if sample is not None and trained:
        indices = np.unique(np.linspace(0, len(trained) - 1, sample).round().astype(int)).tolist()
    for name, parameter in (trained[index] for index in indices):
        if parameter.grad is None:
            yield _Gradient(Entry(name, "no gradient", (), ""))
            continue
        _, values = local_part(f"{name}.grad", parameter.grad)
        numbers = (torch.view_as_real(values.resolve_conj()) if values.is_complex() else values).double()
        nans, infinities = int(numbers.isnan().sum()), int(numbers.isinf().sum())
        norm = float(numbers.nan_to_num(0.0, 0.0, 0.0).norm())
        yield _Gradient(entry_of(name, parameter.grad), norm, nans, infinities)


def _not_finite(own: Sequence[_Gradient], ranks: Ranks) -> str:
    """Describe on which ranks a gradient is not finite; nothing if on none."""
    return "; ".join(
        f"rank {member}: {gradient.nans} NaN, {gradient.infinities} infinite"
        for member, gradient in zip(ranks.members, own, strict=True)
        if gradient.nans or gradient.infinities
    )


def _unequal(own: Sequence[_Gradient], ranks: Ranks, tolerance: float) -> str:
    """Describe which ranks' gradients of a parameter differ, and their norms; nothing if none do."""
    text = difference([gradient.entry for gradient in own], ranks)
    if not text or len({gradient.entry.kind for gradient in own}) > 1:
        return text
    apart = 0.0
    for part in {gradient.entry.part for gradient in own}:
        norms = [gradient.norm for gradient in own if gradient.entry.part == part]
        apart = max(apart, (max(norms) - min(norms)) / (max(norms) or 1.0))
    if tolerance and apart <= tolerance:
        return ""
    norms_text = listed(f"rank {member} {each.norm:.9g}" for member, each in zip(ranks.members, own, strict=True))
    return f"{text}; norms {norms_text} ({apart:.2g} apart)"


def _error(cause: str, found: list[str], num_checked: int) -> CheckError:
    return CheckError(
        cause,
        place=f"{len(found)} of the {num_checked} parameters that were checked",
        expected="finite gradients, the same on all ranks",
        found=listed(found, _MAX_LISTED),
        remedy="wrap the model in DDP on every rank and train through the wrapper; reduce by hand what it does not "
        "hold; do not check within no_sync. If they are not finite: look at the loss and the batch of the rank that is "
        "named, lower the learning rate, unscale before you clip",
    )
