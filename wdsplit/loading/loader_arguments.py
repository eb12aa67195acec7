"""Arguments that a Loader does not have, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable

from wdsplit.errors import InputError, did_you_mean

__all__ = ["ARGUMENTS_OF_TORCH", "unknown_argument"]

ARGUMENTS_OF_TORCH = {
    "batch_sampler": "leave it out: batch_size and the order of the dataset decide",
    "drop_last": 'open the dataset with wdsplit.Dataset(..., tail="drop"), or tail="pad" to fill up the last step',
    "generator": "open the dataset with wdsplit.Dataset(..., seed=...), and draw random numbers in dataset.map_random",
    "in_order": "leave it out: batches always come in order",
    "pin_memory_device": "use pin_memory=True",
    "sampler": "leave it out: each rank reads its share of the dataset's own order",
    "shuffle": "open the dataset with wdsplit.Dataset(..., shuffle=True), its default, or shuffle=False",
    "timeout": "leave it out: a dead worker is an error, and the loader waits for a slow one",
    "worker_init_fn": "leave it out: workers are seeded; draw random numbers in dataset.map_random",
}
"""Arguments of torch's DataLoader that a Loader does not have, and what to write instead."""


def unknown_argument(name: str, parameters: Iterable[str]) -> InputError:
    """Return the error for an argument that a Loader does not have."""
    known = [each for each in parameters if each not in ("self", "unknown")]
    remedy = ARGUMENTS_OF_TORCH.get(name) or did_you_mean([name], [*known, *ARGUMENTS_OF_TORCH]) or "leave it out"
    return InputError(f"a Loader has no argument {name!r}", expected=f"some of {', '.join(known)}", remedy=remedy)
