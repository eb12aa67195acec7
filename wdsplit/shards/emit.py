"""The values of `--emit`: names of files that can be written beside the shards.

Pure (no I/O), and without pyarrow, because the command line's help needs only this. `sidecars` defines
the files.
"""

from __future__ import annotations

from wdsplit.errors import InputError

__all__ = ["SIDECARS", "check_emit"]

SIDECARS = ("dali", "energon", "wids")
"""Values of `convert --emit`."""


def check_emit(emit: tuple[str, ...]) -> tuple[str, ...]:
    """Return the requested sidecars, sorted, each once.

    Raises:
        InputError: There is no such sidecar.
    """
    unknown = [name for name in emit if name not in SIDECARS]
    if unknown:
        raise InputError(
            "there is no such sidecar",
            expected=f"some of {', '.join(SIDECARS)}",
            found=", ".join(repr(name) for name in unknown),
        )
    return tuple(sorted(set(emit)))
