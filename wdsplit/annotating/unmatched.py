"""Missing, extra and duplicate keys: the error that lists them, with examples of each. Pure (no I/O)."""

from __future__ import annotations

from collections.abc import Callable

from wdsplit.annotating.join import Counted, Joined
from wdsplit.annotating.options import AnnotateOptions
from wdsplit.errors import InputError
from wdsplit.shards.manifest import Shards
from wdsplit.tables.table import Table
from wdsplit.texts import counted

__all__ = ["refuse_unmatched"]


def refuse_unmatched(found: Joined, options: AnnotateOptions, table: Table, shards: Shards, key: str) -> None:
    """Refuse samples without a row, rows without a sample and duplicate keys, unless the options allow them.

    Args:
        found: The result of the join.
        options: The options.
        table: The table.
        shards: The dataset's shards.
        key: The table's column of keys.

    Raises:
        InputError: There are some; the error has the count and examples of each kind.
    """
    kinds = [
        ("sample", "without a row", found.missing, options.allow_missing, "--allow-missing", _in_shard(shards)),
        ("row", "without a sample", found.extra, options.allow_extra, "--allow-extra", _in_table(table)),
        (
            "row",
            "with the key of another row",
            found.duplicates,
            options.allow_duplicates is not None,
            "--allow-duplicates first",
            _in_table(table),
        ),
    ]
    refused = [kind for kind in kinds if kind[2].total and not kind[3]]
    if not refused:
        return
    num_samples = int(shards.num_real.sum())
    if found.missing.total == num_samples and found.extra.total:
        remedy = f"no key matches: check --key; the dataset's keys look like {found.missing.examples[0][-1]!r}"
    else:
        remedy = f"correct the table, or use {' '.join(flag for *_, flag, _ in refused)}"
    raise InputError(
        "the keys of the table do not match the dataset",
        place=f"column {key!r}",
        expected=f"one row for each of {counted(num_samples, 'sample')}",
        found="; ".join(
            f"{counted(its.total, unit)} {what}: {_listed(its, where)}" for unit, what, its, _, _, where in refused
        ),
        remedy=remedy,
    )


def _listed(found: Counted, where: Callable[[list[int]], str]) -> str:
    """Return the first keys, with their places."""
    texts = [f"{key!r} ({where(places)})" for *places, key in found.examples]
    return ", ".join(texts) + (", ..." if found.total > len(texts) else "")


def _in_shard(shards: Shards) -> Callable[[list[int]], str]:
    return lambda places: shards[places[0]].path


def _in_table(table: Table) -> Callable[[list[int]], str]:
    return lambda places: " and ".join(table.where(number) for number in sorted(places))
