"""The help of a command: examples first, then its options in groups."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click

__all__ = ["ANNOTATING", "CHOOSING", "CONVERTING", "INDEXING", "LOADING", "REPORTING", "HelpCommand"]

Groups = Mapping[str, tuple[str, ...]]
"""The options of each group, by its name."""

_ENGINE = ("jobs", "engine", "address", "log")

CONVERTING: Groups = {
    "Input": (
        *("map", "columns", "key", "number-keys", "null", "classes", "class-names", "class-depth"),
        *("hive", "keep", "no-keep"),
    ),
    "Rows": ("where", "limit", "skip-empty", "split", "group-by", "shuffle", "seed"),
    "Shards": (
        *("world-size", "workers", "shards", "samples-per-shard", "shard-size"),
        *("pad", "allow-pads", "lanes", "window"),
    ),
    "Output": ("into", "save", "emit", "overwrite", "resume", "draw", "json"),
    "Running": (*_ENGINE, "memory", "plan", "share", "pass"),
}
"""Groups of the commands that convert tables."""

INDEXING: Groups = {
    "Loading": ("world-size", "workers", "lanes", "window"),
    "Sample tables": ("sample-tables", "keep", "no-keep"),
    "Output": ("overwrite", "json"),
    "Running": _ENGINE,
}
"""Groups of `wdsplit index`."""

ANNOTATING: Groups = {
    "Input": ("key", "columns", "map", "hive"),
    "Matching": ("allow-missing", "allow-extra", "allow-duplicates"),
    "Output": ("name", "overwrite", "resume", "json"),
    "Stored annotations": ("list", "drop"),
    "Running": (*_ENGINE, "memory"),
}
"""Groups of `wdsplit annotate`."""

CHOOSING: Groups = {
    "Samples": ("where", "keys", "exclude", "view", "allow-missing"),
    "Output": ("overwrite", "json"),
    "Stored views": ("list", "drop"),
    "Running": _ENGINE,
}
"""Groups of `wdsplit view`."""

LOADING: Groups = {
    "Samples": ("view", "where", "limit", "step", "last", "state", "epoch", "epochs", "seconds"),
    "Training": (
        *("world-size", "workers", "worker-kind", "rank", "batch-size", "seed", "shuffle", "tail"),
        *("lanes", "window", "fields", "decode", "resize", "step-ms"),
    ),
    "One sample": ("sample", "key", "index"),
    "Output": (
        *("output", "samples", "class-field", "read", "report"),
        *("bad-samples-file", "emit", "overwrite", "draw", "verbose", "json"),
    ),
    "Running": _ENGINE,
}
"""Groups of the commands that read datasets."""

REPORTING: Groups = {
    "Samples": ("view", "where"),
    "Training": ("topology", "batch-size", "seed", "shuffle"),
    "Cluster model": ("link", "latency-ms", "step-ms", "sample-ms", "ranks-per-node", "request-price", "gb-price"),
    "Output": ("output", "samples", "class-field", "max-read"),
}
"""Groups of `wdsplit report`."""


_KEEP_LINES = "\n\b"
"""Before a paragraph, it makes click keep the line breaks."""


_RANGE = re.compile(r"\bx(?=[<>])|(?<=<=)x\b")
"""The number in click's ranges, such as [x>=1]; N is what the help calls it."""


class HelpCommand(click.Command):
    """A command whose help shows its examples (the epilog) before its options.

    Args:
        groups: The groups of its options. Options without a group come last.
    """

    def __init__(self, *args: Any, groups: Groups | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups = groups or {}
        for parameter in self.params:
            if isinstance(parameter.type, (click.IntRange, click.FloatRange)):
                parameter.metavar = parameter.metavar or "N"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; without any, show the examples."""
        if not args and not ctx.resilient_parsing:
            raise click.UsageError(f"Missing arguments. {(self.epilog or '').replace(_KEEP_LINES, '')}", ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, after the program's `before` hook."""
        if ctx.obj is not None:
            ctx.obj()
        return super().invoke(ctx)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write usage, examples, description and options."""
        self.format_usage(ctx, formatter)
        self.format_epilog(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group."""
        listed: dict[str, list[tuple[str, str]]] = {name: [] for name in [*self.groups, "Options"]}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                flags, text = record
                listed[self.group_of(parameter)].append((flags, _RANGE.sub("N", text)))
        for name, records in listed.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)

    def group_of(self, parameter: click.Parameter) -> str:
        """Return the name of the group that lists an option."""
        names = {name.removeprefix("--") for name in parameter.opts}
        return next((group for group, options in self.groups.items() if names & set(options)), "Options")
