"""The help of a command: an example first, then its options in groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

__all__ = ["CONVERTING", "LOADING", "HelpCommand"]

Groups = Mapping[str, tuple[str, ...]]
"""Names of groups, and the options of each."""

CONVERTING: Groups = {
    "Input": ("map", "columns", "key", "number-keys", "null", "class-names", "hive", "keep", "no-keep"),
    "Rows": ("where", "limit", "skip-empty", "split", "group-by", "shuffle", "seed"),
    "Shards": (
        *("world-size", "workers", "shards", "samples-per-shard", "shard-size"),
        *("pad", "allow-pads", "lanes", "window"),
    ),
    "Output": ("into", "save", "emit", "overwrite", "resume", "draw", "json"),
    "Running": ("jobs", "engine", "address", "memory", "log", "plan", "share", "pass"),
}
"""Groups of the commands that write datasets."""

LOADING: Groups = {
    "Samples": ("view", "where", "limit", "step", "last", "state", "epoch", "epochs", "seconds"),
    "Training": (
        *("world-size", "workers", "worker-kind", "rank", "topology", "batch-size", "seed", "shuffle", "tail"),
        *("lanes", "window", "fields", "decode", "resize", "step-ms"),
    ),
    "Cluster model": ("link", "latency", "step-time", "sample-time", "ranks-per-node", "request-price", "gb-price"),
    "Output": ("output", "samples", "label", "class-field", "read", "max-read", "report", "overwrite", "draw", "json"),
}
"""Groups of the commands that read datasets as a training does."""


_AS_IT_IS = "\n\b"
"""Before a paragraph: click keeps its lines."""


class HelpCommand(click.Command):
    """A command whose epilog, its examples, begins its help.

    Args:
        groups: The groups of its options; those that none of them names come last.
    """

    def __init__(self, *args: Any, groups: Groups | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups = groups or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the examples to whoever names the command alone."""
        if not args and not ctx.resilient_parsing:
            raise click.UsageError(f"Missing arguments. {(self.epilog or '').replace(_AS_IT_IS, '')}", ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, after what the program does before each."""
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
        """Write the options by their groups."""
        listed: dict[str, list[tuple[str, str]]] = {name: [] for name in [*self.groups, "Options"]}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                listed[self.group_of(parameter)].append(record)
        for name, records in listed.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)

    def group_of(self, parameter: click.Parameter) -> str:
        """Return the name of the group that lists an option."""
        names = {name.removeprefix("--") for name in parameter.opts}
        return next((group for group, options in self.groups.items() if names & set(options)), "Options")
