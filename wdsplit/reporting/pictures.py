"""The pictures of a report: the facts that each shows, and a sentence that says the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from wdsplit.reporting.charts import Picture, bars, heatmap, histogram, lines
from wdsplit.reporting.facts import Facts
from wdsplit.reporting.fields import FieldFacts, Measure
from wdsplit.reporting.mixing import RankView
from wdsplit.texts import counted, human_bytes, human_number, safe_text

__all__ = ["field_pictures", "pictures"]

_BARS, _ROWS = 30, 20
_NAME = 28
_TABLE_ROWS = 120
_MAX_HISTOGRAMS = 12
_GPUS = "GPUs (ranks)"


def pictures(facts: Facts) -> list[Picture]:
    """Return all pictures for which there are facts."""
    makers = (_balance, _classes_by_shard, _class_by_step, _skew, _shard_by_step, _neighbours, _meetings, _shards)
    found = [picture for maker in makers for picture in maker(facts)]
    return [*found, *_waiting(facts), *field_pictures(facts)]


def unique_names(names: Sequence[str], limit: int = _NAME) -> list[str]:
    """Return names as they are shown: shortened, and all different."""
    shown: list[str] = []
    for name in names:
        text, number = safe_text(name, limit), 2
        while text in shown:
            text, number = f"{safe_text(name, limit - 5)} ({number})", number + 1
        shown.append(text)
    return shown


def _balance(facts: Facts) -> Iterator[Picture]:
    labels = facts.labels
    if labels is None:
        return
    counts = labels.counts.tolist()
    total = sum(counts)
    names = unique_names(labels.names[:_TABLE_ROWS])
    values = [{"name": name, "count": count} for name, count in zip(names[:_BARS], counts, strict=False)]
    left = len(counts) - len(values)
    if left:
        values.append({"name": f"({left:,} others)", "count": sum(counts[_BARS:])})
    even = (
        "All classes have the same number of samples"
        if counts[0] == counts[-1]
        else (f"The largest class, {names[0]}, has {counts[0]:,} samples; the smallest has {counts[-1]:,}")
    )
    yield Picture(
        "balance",
        f"Samples of each class ({safe_text(labels.field, _NAME)})",
        f"{even}: {total:,} samples in {counted(len(counts), 'class', 'classes')}.",
        facts.scan_basis,
        bars(values, "name", "count", ("class", "samples")),
        ("class", "samples", "share"),
        tuple((n, f"{c:,}", f"{c / total:.2%}") for n, c in zip(names, counts, strict=False)),
    )


def _ranges(count: int, a_row: int, total: int) -> list[str]:
    """Return the names of ranges of shards."""
    if a_row == 1:
        return [f"{number:,}" for number in range(count)]
    return [f"{number * a_row:,} to {min(total, (number + 1) * a_row) - 1:,}" for number in range(count)]


def _classes_by_shard(facts: Facts) -> Iterator[Picture]:
    table, labels = facts.shard_classes, facts.labels
    if table is None or labels is None or table.shape[1] < 2:
        return
    names = unique_names(labels.names[:_ROWS])
    num_shards = sum(part.num_shards for part in facts.parts)
    a_row = facts.shards.shards_a_row
    ranges = _ranges(table.shape[1], a_row, num_shards)
    overall = labels.counts / max(1, labels.counts.sum())
    away = float(np.abs(table - overall[:, None]).sum(axis=0).mean() / 2)
    values = _cells(table[: len(names)], [number * a_row for number in range(len(ranges))], names)
    yield Picture(
        "shard-classes",
        "Classes in the shards",
        f"On average {away:.0%} of a shard's samples would have to change class for the shard to be like the whole.",
        facts.scan_basis,
        heatmap(values, ("shard", "class", "share of the shard"), _top(table)),
        ("shards", *names),
        tuple((name, *(f"{share:.1%}" for share in table[: len(names), i])) for i, name in enumerate(ranges)),
    )


def _cells(table: Any, columns: Sequence[int], names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"x": column, "y": name, "value": round(float(value), 4)}
        for name, row in zip(names, table.tolist(), strict=True)
        for column, value in zip(columns, row, strict=True)
    ]


def _top(table: Any) -> float:
    """Return the value of the brightest colour: three times an even share, or more if the shares are uneven."""
    return float(min(1.0, max(3 / len(table), np.median(np.max(table, axis=0))) if table.size else 1.0))


def _class_by_step(facts: Facts) -> Iterator[Picture]:
    view = facts.mixing.rank_view
    if view is None:
        return
    num_classes = len(facts.mixing.names if facts.labels is None else facts.labels.names)
    kept = [row for row in range(len(view.classes)) if row < num_classes or view.classes[row].any()][:_ROWS]
    names = unique_names([facts.mixing.names[row] for row in kept])
    share = view.classes[kept] / np.maximum(1, view.classes.sum(axis=0))
    seen = float((view.classes > 0).sum(axis=0).mean())
    what = "classes" if facts.labels is not None else "tenths of the files"
    what_one = "class" if facts.labels is not None else "part of the files"
    basis = "exact" if len(view.steps) > int(view.steps[-1]) else f"exact, of {len(view.steps)} steps over the epoch"
    yield Picture(
        "class-steps",
        f"What GPU 0 of {view.world_size} gets: {what} in its batches",
        f"At {counted(len(view.steps), 'step')} over epoch 0, a batch of {facts.batch_size} has {seen:.1f} of "
        f"{num_classes} {what}. {_meaning(facts)}",
        basis,
        heatmap(
            _cells(share, view.steps.tolist(), names),
            ("step", what_one, "share of the batch"),
            min(1.0, max(0.1, 3 / num_classes)),
        ),
        ("step", *names),
        tuple(
            (f"{step:,}", *column)
            for step, column in zip(view.steps.tolist(), view.classes[kept].T.tolist(), strict=True)
        ),
    )


def _meaning(facts: Facts) -> str:
    if facts.labels is None and facts.mixing.is_shuffled:
        return "The rows were shuffled when they were converted, so stripes do no harm: all files are alike."
    return "Well mixed, this is even noise; stripes and blocks mean that similar samples come together."


def _skew(facts: Facts) -> Iterator[Picture]:
    mixes = facts.mixing.batches
    if not mixes:
        return
    values = [{"x": mix.world_size, "y": round(mix.skew, 3), "series": "this dataset"} for mix in mixes]
    values += [{"x": mix.world_size, "y": round(mix.ideal, 3), "series": "drawn at random"} for mix in mixes]
    first, last = mixes[0], mixes[-1]
    more = f" and {human_number(last.skew)} with {counted(last.world_size, 'GPU')}" if len(mixes) > 1 else ""
    what = "classes" if facts.labels is not None else "tenths of the files"
    yield Picture(
        "skew",
        f"How uneven the {what} of a batch are, by the number of GPUs",
        f"Chi-squared of a rank's batch of {facts.batch_size} is {human_number(first.skew)} with "
        f"{counted(first.world_size, 'GPU')}{more}; "
        f"drawn at random it would be {human_number(last.ideal)}.",
        facts.mixing.basis,
        lines(values, (_GPUS, "chi-squared"), log=True, ordinal=True),
        ("GPUs", "chi-squared", "standard error", "drawn at random", f"{what} in a batch", "batches"),
        tuple(
            (
                m.world_size,
                f"{m.skew:.2f}",
                f"{m.error:.2f}" if m.error else "exact",
                f"{m.ideal:.2f}",
                f"{m.classes_seen:.2f}",
                f"{m.num_batches:,}",
            )
            for m in mixes
        ),
    )


def _shard_by_step(facts: Facts) -> Iterator[Picture]:
    view = facts.mixing.rank_view
    if view is None or len(view.shards) < 2:
        return
    num_shards = sum(part.num_shards for part in facts.parts)
    names = _ranges(len(view.shards), view.shards_a_row, num_shards)
    share = view.shards / np.maximum(1, view.shards.sum(axis=0))
    at_once = float((view.shards > 0).sum(axis=0).mean())
    yield Picture(
        "shard-steps",
        f"Where GPU 0 of {view.world_size} reads, through epoch 0",
        f"Around a step it reads from {at_once:.1f} of {len(view.shards)} {_range_word(view)} on average.",
        "exact: the order of epoch 0",
        heatmap(
            _cells(share, view.steps.tolist(), names), ("step", "shard", "share of what it reads"), _shard_top(share)
        ),
        ("step", *names),
        tuple(
            (f"{step:,}", *(f"{value:.1%}" for value in column))
            for step, column in zip(view.steps.tolist(), share.T.tolist(), strict=True)
        ),
    )


def _range_word(view: RankView) -> str:
    return "shards" if view.shards_a_row == 1 else f"ranges of {view.shards_a_row:,} shards"


def _shard_top(share: Any) -> float:
    return max(0.02, float(np.percentile(share, 99)))


def _neighbours(facts: Facts) -> Iterator[Picture]:
    found = facts.mixing.neighbours
    if found is None:
        return
    places = [(i + 0.5) / len(found.share) for i in range(len(found.share))]
    rows = list(zip(places, found.share.tolist(), found.ideal.tolist(), strict=True))
    values = [{"x": round(place, 3), "y": round(share, 4), "series": "this dataset"} for place, share, _ in rows]
    values += [{"x": round(place, 3), "y": round(ideal, 4), "series": "drawn at random"} for place, _, ideal in rows]
    yield Picture(
        "neighbours",
        "How far neighbours in a file are apart in an epoch",
        f"Half of the samples that lie side by side in a file are more than {found.median:.0%} of the epoch apart; "
        "drawn at random it would be 29%.",
        "exact" if found.is_exact else f"sampled: {found.pairs:,} pairs",
        lines(values, ("distance, as a part of the epoch", "share of pairs")),
        ("distance", "share of pairs", "drawn at random"),
        tuple((f"{place - 0.025:.0%} to {place + 0.025:.0%}", f"{s:.1%}", f"{i:.1%}") for place, s, i in rows),
    )


def _meetings(facts: Facts) -> Iterator[Picture]:
    if not facts.mixing.meetings:
        return
    names = [f"{m.lanes} lanes x {m.window:,}{' (this)' if m.is_own else ''}" for m in facts.mixing.meetings]
    values = [{"name": n, "value": round(m.figure, 3)} for n, m in zip(names, facts.mixing.meetings, strict=True)]
    own = facts.mixing.meetings[0]
    yield Picture(
        "meetings",
        "How often samples of a batch meet again in the next epoch",
        f"With this dataset's {own.lanes} lanes and windows of {counted(own.window, 'sample')}: {own.figure:.2f} times "
        "as often as by chance. 1 is ideal; other lanes and windows are options of Dataset.",
        "exact"
        if all(m.error == 0 for m in facts.mixing.meetings)
        else "sampled: batches of epoch 0 followed into epoch 1",
        bars(values, "name", "value", ("lanes x window", "times as often as by chance")),
        (
            "lanes",
            "window",
            "memory of one process",
            "times as often as by chance",
            "standard error",
            "others met again",
        ),
        tuple(
            (
                m.lanes,
                f"{m.window:,}",
                human_bytes(m.held_bytes),
                f"{m.figure:.2f}",
                f"{m.error:.2f}" if m.error else "exact",
                f"{human_number(m.met_again)} of {facts.mixing.global_batch - 1:,}",
            )
            for m in facts.mixing.meetings
        ),
    )


def _shards(facts: Facts) -> Iterator[Picture]:
    shards = facts.shards
    if not len(shards.samples):
        return
    num_shards = sum(part.num_shards for part in facts.parts)
    names = _ranges(len(shards.samples), shards.shards_a_row, num_shards)
    a_row = shards.shards_a_row
    in_row = np.minimum(a_row, num_shards - a_row * np.arange(len(shards.num_bytes)))
    sizes = (shards.num_bytes / in_row / 1e6).tolist()
    begins = [number * a_row for number in range(len(sizes))]
    values = [
        {"begin": b, "end": min(num_shards, b + a_row), "count": round(s, 4)}
        for b, s in zip(begins, sizes, strict=True)
    ]
    rows = zip(names, shards.samples.tolist(), shards.pads.tolist(), shards.num_bytes.tolist(), strict=True)
    yield Picture(
        "shards",
        "Bytes of the shards, in their order",
        f"{counted(num_shards, 'shard')}: the median has {human_bytes(shards.median)}, the smallest "
        f"{human_bytes(shards.smallest)}, the largest {human_bytes(shards.largest)}; "
        f"{counted(int(shards.pads.sum()), 'pad')} fill up shards.",
        "exact",
        histogram(values, "shard", "MB" if a_row == 1 else f"MB per shard, mean of {a_row:,}"),
        ("shards", "samples", "pads", "bytes"),
        tuple((name, f"{samples:,}", f"{pads:,}", human_bytes(size)) for name, samples, pads, size in rows),
    )


def _waiting(facts: Facts) -> Iterator[Picture]:
    if not facts.reading.topologies or not facts.num_samples:
        return
    values = [
        {"name": str(each.topology), "value": round(each.estimate.waiting * 100, 2)}
        for each in facts.reading.topologies
    ]
    judged = facts.reading.judged
    yield Picture(
        "waiting",
        "How long GPUs would wait for data",
        f"With {judged.topology} GPUs would wait {judged.estimate.waiting:.0%} of the time, after the first batch.",
        "model: see its assumptions",
        bars(values, "name", "value", ("topology", "% of the time")),
        ("topology", "% of the time"),
        tuple((row["name"], row["value"]) for row in values),
    )


def field_pictures(facts: Facts) -> Iterator[Picture]:
    """Yield a histogram of each number of each field that varies, up to a dozen."""
    varying = [
        (number, each, measure)
        for number, each in enumerate(facts.fields)
        for measure in each.measures
        if not measure.is_constant and (facts.labels is None or each.name != facts.labels.field)
    ]
    for number, each, measure in varying[:_MAX_HISTOGRAMS]:
        yield _histogram(facts, number, each, measure)


def _histogram(facts: Facts, number: int, each: FieldFacts, measure: Measure) -> Picture:
    name = safe_text(each.name, _NAME)
    edges, counts = measure.edges.tolist(), measure.counts.tolist()
    values = [
        {"begin": begin, "end": end, "count": count}
        for begin, end, count in zip(edges, edges[1:], counts, strict=False)
    ]
    is_clipped = edges[0] > measure.minimum or edges[-1] < measure.maximum
    beyond = " The bars at the ends include all values beyond them." if is_clipped else ""
    unit = human_bytes if measure.name == "bytes" else human_number
    return Picture(
        f"field-{number}-{measure.name}",
        f"{name}: {measure.name}",
        f"From {unit(measure.minimum)} to {unit(measure.maximum)}, the median is {unit(measure.median)}.{beyond}",
        facts.scan_basis,
        histogram(values, measure.name, "samples"),
        ("from", "to", "samples"),
        tuple((unit(row["begin"]), unit(row["end"]), f"{row['count']:,}") for row in values),
    )
