"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from wdsplit.order import TAILS

__all__ = ["batch_size_option", "json_option", "order_options", "with_options"]

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")

_WORLD_SIZE = click.option("--world-size", type=click.IntRange(1), default=1, show_default=True, help="Ranks.")
_WORKERS = click.option(
    "--workers", type=click.IntRange(0), default=0, show_default=True, help="Worker processes of each rank."
)
_SEED = click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the order.")
_SHUFFLE = click.option(
    "--shuffle/--no-shuffle", default=True, show_default=True, help="Whether the order is shuffled."
)
_TAIL = click.option("--tail", type=click.Choice(TAILS), default="pad", show_default=True, help="How an epoch ends.")


def batch_size_option(default: int) -> Decorator:
    """Return a decorator that adds `--batch-size` to a command."""
    return click.option(
        "--batch-size", type=click.IntRange(1), default=default, show_default=True, help="Samples a batch and rank."
    )


def with_options(options: Sequence[Decorator]) -> Decorator:
    """Return a decorator that adds options to a command, listed in their order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


order_options = with_options((_WORLD_SIZE, _WORKERS, _SEED, _SHUFFLE, _TAIL))
"""Adds what the order and the split depend on: world_size, workers, seed, shuffle, tail."""
