"""Are the gradients the same on all ranks after backward: a spot check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsplit.debug.parameters import Part, differing, local_part, named_parameters, odd_ones, tensor_hash
from wdsplit.debug.ranks import CheckError, Ranks, Rendezvous, listed, names_of
from wdsplit.errors import InputError
from wdsplit.order.split import whole

if TYPE_CHECKING:
    import torch

__all__ = ["check_same_gradients"]

_MAX_TOLD = 5


@dataclass(frozen=True)
class _Gradient:
    """A rank's gradient of a parameter, or its part of it; all but the name are empty if there is none.

    Attributes:
        name: The parameter's.
        part: Which part of it.
        digest: A hash of the values.
        norm: Their Euclidean norm, in float64, without what is not finite.
        nans: How many are no number.
        infinities: How many are infinite.
    """

    name: str
    part: Part = ()
    digest: str = ""
    norm: float = 0.0
    nans: int = 0
    infinities: int = 0

    @property
    def is_finite(self) -> bool:
        """Whether all values are."""
        return not self.nans and not self.infinities


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
        tolerance: How far the norms may be apart, in parts of the largest; 0 for the same bits.
        group: A process group or DeviceMesh whose ranks are compared; by default all.
        timeout_s: How long a rank waits for the others to call this, too.

    Returns:
        How many parameters were looked at.

    Raises:
        CheckError: They differ, or hold NaN or infinity: it names the parameters, the ranks and the norms. Or ranks did
            not come.
        InputError: An argument cannot be, or a gradient cannot be compared (see `param_hash`), on any rank.
        TopologyError: This process is not in the group.
    """
    sample = whole(sample)
    if sample is not None and (type(sample) is not int or sample < 1):
        raise InputError("sample cannot be", expected="an integer of at least 1, or None", found=repr(sample))
    if not 0 <= tolerance < 1:
        raise InputError("tolerance cannot be", expected="0 <= tolerance < 1", found=repr(tolerance))
    ranks = Ranks.of(group)
    rendezvous = Rendezvous(ranks, "check_same_gradients", timeout_s)
    gathered = rendezvous.gathered_or_raised(lambda: list(_gradients(model, sample)))
    names = [[gradient.name for gradient in own] for own in gathered]
    if any(own != names[0] for own in names):
        raise _error("the ranks have different parameters", ["their names differ: see check_same_parameters"], 1)
    problems = [(own[0].name, found) for own in zip(*gathered, strict=True) if (found := _broken(own, ranks))]
    if not problems:
        problems = [
            (own[0].name, found) for own in zip(*gathered, strict=True) if (found := _unequal(own, ranks, tolerance))
        ]
        cause = "the ranks have different gradients"
    else:
        cause = "gradients are not finite"
    if problems:
        raise _error(cause, [f"{name!r}: {found}" for name, found in problems], len(names[0]))
    return len(names[0])


def _gradients(model: torch.nn.Module, sample: int | None) -> Iterator[_Gradient]:
    import torch

    trained = [(name, parameter) for name, parameter in named_parameters(model) if parameter.requires_grad]
    places = range(len(trained))
    if sample is not None and trained:
        places = np.unique(np.linspace(0, len(trained) - 1, sample).round().astype(int)).tolist()
    for name, parameter in (trained[place] for place in places):
        if parameter.grad is None:
            yield _Gradient(name)
            continue
        part, local = local_part(f"{name}.grad", parameter.grad)
        values = local.to_dense() if local.layout != torch.strided else local
        numbers = (torch.view_as_real(values.resolve_conj()) if values.is_complex() else values).double()
        nans, infinities = int(numbers.isnan().sum()), int(numbers.isinf().sum())
        norm = float(numbers.nan_to_num(0.0, 0.0, 0.0).norm())
        yield _Gradient(name, part, tensor_hash(values), norm, nans, infinities)


def _broken(own: Sequence[_Gradient], ranks: Ranks) -> str:
    """Say on which ranks a gradient holds what is no number; nothing if on none."""
    found = [
        f"rank {member}: {gradient.nans} NaN, {gradient.infinities} infinite"
        for member, gradient in zip(ranks.members, own, strict=True)
        if not gradient.is_finite
    ]
    return "; ".join(found)


def _unequal(own: Sequence[_Gradient], ranks: Ranks, tolerance: float) -> str:
    """Say which ranks' gradients of a parameter differ, and their norms; nothing if none do."""
    lacking = [member for member, gradient in zip(ranks.members, own, strict=True) if not gradient.digest]
    if lacking:
        return f"no gradient on {names_of(lacking)}, but on the others" if len(lacking) < len(own) else ""
    for part in {gradient.part: None for gradient in own}:
        holders = [place for place, gradient in enumerate(own) if gradient.part == part]
        norms = [own[place].norm for place in holders]
        apart = (max(norms) - min(norms)) / max(norms) if max(norms) else 0.0
        odd = differing([own[place].digest for place in holders])
        if odd and (not tolerance or apart > tolerance):
            who = odd_ones(ranks, [holders[place] for place in odd], len(holders))
            told = ", ".join(f"rank {ranks.members[place]} {own[place].norm:.9g}" for place in holders[:8])
            return f"{who}; norms {told} ({apart:.2g} apart)"
    return ""


def _error(cause: str, found: list[str], looked_at: int) -> CheckError:
    return CheckError(
        cause,
        place=f"{len(found)} of the {looked_at} parameters that were looked at",
        expected="finite gradients, the same on all ranks",
        found=listed(found, _MAX_TOLD),
        remedy="wrap the model in DDP on every rank and train through the wrapper; reduce by hand what it does not "
        "hold; do not check within no_sync. If they are not finite: look at the loss and the batch of the rank that is "
        "named, lower the learning rate, unscale before you clip",
    )
