"""A diagnosis of the gaps between batches: whether the loader or the model is the bottleneck."""

from __future__ import annotations

from typing import Any

import numpy as np

from wdsplit.loading.loader import loader_of
from wdsplit.texts import counted

__all__ = ["diagnose"]

_PERCENTILES = (50, 90, 99, 100)


def diagnose(loader: Any) -> str:
    """Describe whether the loader or the model is the bottleneck, from what the loader has delivered so far.

    Percentiles cover the last 10,000 batches, other figures all batches of the loader. A GPU computes asynchronously:
    while you measure, let the program wait for it once per step, for example with `loss.item()`. The figures themselves
    are those of `Loader.statistics`.

    Args:
        loader: A `wdsplit.Loader`, the audit of one, or an integration's loader.

    Raises:
        InputError: `loader` is none of these.
    """
    found = loader_of(loader)
    made = found.statistics()
    if not made.batches:
        return "no batches were delivered yet"
    bound = "loader-bound: the training waits for batches"
    if made.bottleneck != "loader":
        bound = "compute-bound: the loader keeps up; the training waits"
    gaps = np.array(found.clock.gaps).reshape(-1, 2)  # pairs of computing and waiting
    figures = np.percentile(gaps, _PERCENTILES, axis=0).T.tolist() if len(gaps) else ([], [])
    computes, waits = (
        ", ".join(f"{percent} % {s * 1000:,.2f} ms" for percent, s in zip(_PERCENTILES, each, strict=False))
        for each in figures
    )
    return (
        f"{bound} {100 * made.wait_share:.0f} % of the time\n"
        f"  {counted(made.batches, 'batch', 'batches')}, {counted(made.samples, 'sample')}: "
        f"{made.samples / (made.wait_s + made.compute_s):,.0f} samples/s\n"
        f"  percentiles of the wait for a batch: {waits}\n"
        f"  percentiles of the time between batches: {computes}"
    )
