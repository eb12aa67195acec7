"""The pictures of a report: the facts that each shows, and a sentence that says the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from wdsplit.reporting.charts import Picture, bars, histogram
from wdsplit.reporting.collect import Facts
from wdsplit.texts import counted, human_bytes, human_number, safe_text

__all__ = ["pictures"]

_BARS = 30
_NAME = 28
_TABLE_ROWS, _SHARD_ROWS = 120, 60
_MAX_HISTOGRAMS = 12


def pictures(facts: Facts) -> list[Picture]:
    """Return all pictures for which there are facts."""
    makers = (_classes, _skew, _shards, _fields)
    return [picture for maker in makers for picture in maker(facts)]


def unique_names(names: Sequence[str]) -> list[str]:
    """Return names as they are shown: shortened, and all different."""
    shown: list[str] = []
    for name in names:
        text, number = safe_text(name, _NAME), 2
        while text in shown:
            text, number = f"{safe_text(name, _NAME - 5)} ({number})", number + 1
        shown.append(text)
    return shown


def _classes(facts: Facts) -> Iterator[Picture]:
    labels = facts.labels
    if labels is None:
        return
    counts, names = labels.counts.tolist(), unique_names(labels.names[:_TABLE_ROWS])
    total, left = sum(counts), len(counts) - _BARS
    others = ([f"({left:,} others)"], [sum(counts[_BARS:])]) if left > 0 else ([], [])
    even = (
        "All classes have the same number of samples"
        if counts[0] == counts[-1]
        else f"The largest class, {names[0]}, has {counts[0]:,} samples; the smallest has {counts[-1]:,}"
    )
    yield Picture(
        "balance",
        f"Samples of each class ({safe_text(labels.field, _NAME)})",
        f"{even}: {total:,} samples in {counted(len(counts), 'class', 'classes')}.",
        facts.scan_basis,
        bars([*names[:_BARS], *others[0]], [*counts[:_BARS], *others[1]], ("class", "samples")),
        ("class", "samples", "share"),
        [(name, f"{count:,}", f"{100 * count / total:.2f} %") for name, count in zip(names, counts, strict=False)],
    )


def _skew(facts: Facts) -> Iterator[Picture]:
    mixes = facts.batches
    if not mixes:
        return
    first, last = mixes[0], mixes[-1]
    more = f" and {human_number(last.chi_squared)} with {counted(last.world_size, 'GPU')}" if len(mixes) > 1 else ""
    names = [*(counted(mix.world_size, "GPU") for mix in mixes), "drawn at random"]
    found = [round(each, 3) for each in (*(mix.chi_squared for mix in mixes), last.ideal)]
    yield Picture(
        "skew",
        "How uneven the classes of a batch are, by the number of GPUs",
        f"Chi-squared of a rank's batch of {facts.batch_size} is {human_number(first.chi_squared)} with "
        f"{counted(first.world_size, 'GPU')}{more}; drawn at random it would be {human_number(last.ideal)}.",
        facts.mixing_basis,
        bars(names, found, ("GPUs (ranks)", "chi-squared")),
        ("GPUs", "chi-squared", "standard error", "drawn at random", "classes in a batch", "batches"),
        [
            (
                mix.world_size,
                f"{mix.chi_squared:.2f}",
                "exact" if mix.is_all else f"{mix.error:.2f}",
                f"{mix.ideal:.2f}",
                f"{mix.classes_in_batch:.2f}",
                f"{mix.num_batches:,}",
            )
            for mix in mixes
        ],
    )


def _shards(facts: Facts) -> Iterator[Picture]:
    """Yield the sizes of the shards, in their order: if there are many, of ranges of them."""
    if not facts.num_shards:
        return
    samples, pads, num_bytes = (
        np.concatenate([part.manifest.shards.column(name) for part in facts.parts])
        for name in ("num_samples", "num_pads", "num_bytes")
    )
    a_row = max(1, -(-facts.num_shards // _SHARD_ROWS))
    edges = [*range(0, facts.num_shards, a_row), facts.num_shards]
    smallest, median, largest = (human_bytes(int(size)) for size in np.percentile(num_bytes, (0, 50, 100)))
    names = [f"{begin:,}" if a_row == 1 else f"{begin:,} to {end - 1:,}" for begin, end in pairwise(edges)]
    sums = [np.add.reduceat(column, edges[:-1]) for column in (samples - pads, pads, num_bytes)]
    sizes = (sums[-1] / np.diff(edges) / 1e6).round(4).tolist()
    yield Picture(
        "shards",
        "Bytes of the shards, in their order",
        f"{counted(facts.num_shards, 'shard')}: the median has {median}, the smallest {smallest}, the largest "
        f"{largest}; {counted(int(pads.sum()), 'pad')} fill up shards.",
        "exact",
        histogram(edges, sizes, ("shard", "MB" if a_row == 1 else f"MB per shard, mean of {a_row:,}")),
        ("shards", "samples", "pads", "bytes"),
        [
            (name, f"{own:,}", f"{fill:,}", human_bytes(size))
            for name, own, fill, size in zip(names, *(column.tolist() for column in sums), strict=True)
        ],
    )


def _fields(facts: Facts) -> Iterator[Picture]:
    """Yield a histogram of each number of each field that varies, up to a dozen."""
    varying = [
        (number, each, measure)
        for number, each in enumerate(facts.fields)
        for measure in each.measures
        if not measure.is_constant and (facts.labels is None or each.name != facts.labels.field)
    ]
    for number, each, measure in varying[:_MAX_HISTOGRAMS]:
        edges, counts = measure.edges.tolist(), measure.counts.tolist()
        is_clipped = edges[0] > measure.minimum or edges[-1] < measure.maximum
        beyond = " The bars at the ends include all values beyond them." if is_clipped else ""
        unit = human_bytes if measure.name == "bytes" else human_number
        yield Picture(
            f"field-{number}-{measure.name}",
            f"{safe_text(each.name, _NAME)}: {measure.name}",
            f"From {unit(measure.minimum)} to {unit(measure.maximum)}, the median is {unit(measure.median)}.{beyond}",
            facts.scan_basis,
            histogram(edges, counts, (measure.name, "samples")),
            ("from", "to", "samples"),
            [(unit(a), unit(b), f"{count:,}") for a, b, count in zip(edges, edges[1:], counts, strict=False)],
        )
