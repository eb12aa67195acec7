"""`wdsplit bench`: how fast the loader reads a dataset on this machine, and how much memory it takes."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import click

import wdsplit
from wdsplit.cli.options import batch_size_option, json_option, order_options
from wdsplit.cli.terminal import echo_json, human_bytes, progress_bar
from wdsplit.urls import shown_url

__all__ = ["bench_command"]

_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class _Measured:
    """What was delivered, and how long that took.

    Attributes:
        batches: Batches that were delivered.
        samples: Their samples.
        first_batch_s: From making the first iterator to its first batch, workers started; None without a batch.
        seconds: From the same moment to the last batch.
    """

    batches: int
    samples: int
    first_batch_s: float | None
    seconds: float


@click.command(
    "bench",
    epilog="""Examples:

\b
  wdsplit bench data/train --workers 4 --batch-size 256
  wdsplit bench data/train --workers 4 --worker-kind thread --resize 224 --fields jpg,cls --seconds 30
  wdsplit bench data/train --world-size 8 --rank 3 --step-ms 150""",
)
@click.argument("dataset")
@order_options
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True, help="Read as this rank.")
@batch_size_option(256)
@click.option(
    "--worker-kind",
    type=click.Choice(["process", "thread"]),
    default="process",
    show_default=True,
    help="Run workers as processes or as threads.",
)
@click.option("--fields", metavar="NAME[,NAME...]", help="Read these fields only.  [default: all]")
@click.option(
    "--decode", multiple=True, metavar="HANDLER", help="Decode fields, images by this handler (pil, rgb8); repeatable."
)
@click.option("--resize", type=click.IntRange(1), help="Decode fields, and resize images to this height and width.")
@click.option("--epochs", type=click.IntRange(1), default=1, show_default=True, help="Epochs to read.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Stop after this many seconds.")
@click.option(
    "--step-ms",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Simulate a training step of this many milliseconds after each batch.",
)
@json_option
def bench_command(
    dataset: str,
    decode: tuple[str, ...],
    resize: int | None,
    epochs: int,
    seconds: float | None,
    step_ms: float,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Measure how fast the loader reads DATASET on this machine.

    Runs wdsplit.Loader over it as training would, and throws the batches away. With --step-ms each batch is followed by
    a simulated training step; the time spent waiting for batches then says whether the loader keeps up.
    """
    loader = _loader(dataset, [*decode, *([] if resize is None else [wdsplit.resized(resize)])], **arguments)
    measured = _run(loader, epochs, seconds, step_ms / 1000)
    found = _figures(loader, measured)
    if as_json:
        echo_json({"dataset": shown_url(dataset), **found})
    else:
        click.echo(_summary(shown_url(dataset), found))


def _loader(
    url: str,
    handlers: list[Any],
    *,
    fields: str | None,
    rank: int,
    world_size: int,
    workers: int,
    worker_kind: Any,
    batch_size: int,
    **order: Any,
) -> wdsplit.Loader:
    """Make the loader that is measured; fields that are named come as tuples."""
    names = None if fields is None else [name.strip() for name in fields.split(",")]
    dataset = wdsplit.Dataset(url, rank=rank, world_size=world_size, fields=names, **order)
    if handlers:
        dataset = dataset.decode(*handlers)
    if names is not None:
        dataset = dataset.to_tuple(*names)
    return wdsplit.Loader(dataset, batch_size, num_workers=workers, workers=worker_kind)


def _run(loader: wdsplit.Loader, epochs: int, seconds: float | None, step_s: float) -> _Measured:
    """Take batches until the epochs or the time are over; wait `step_s` after each, as a training step would take."""
    batches = samples = 0
    first_batch_s: float | None = None
    started = last = time.perf_counter()
    total = epochs * len(loader)
    with progress_bar("loading") as bar:
        for _ in range(epochs):
            for batch in loader:
                last = time.perf_counter()
                batches += 1
                samples += _num_samples(batch)
                if first_batch_s is None:
                    first_batch_s = last - started
                bar.update(batches, total, samples=samples)
                if seconds is not None and last - started >= seconds:
                    return _Measured(batches, samples, first_batch_s, last - started)
                time.sleep(step_s)
    return _Measured(batches, samples, first_batch_s, last - started)


def _num_samples(batch: Any) -> int:
    columns = batch.values() if isinstance(batch, dict) else batch
    return len(next(iter(columns)))


def _figures(loader: wdsplit.Loader, measured: _Measured) -> dict[str, Any]:
    """Return all that is shown, as JSON has it.

    Workers are ahead of what was delivered, so windows are counted for the samples that the workers made.
    """
    made = loader.statistics()
    num_bytes = made.delivered_bytes
    manifest = loader.dataset.manifest
    num_windows = int((-(-manifest.shards.num_real // loader.dataset.options.window)).sum())
    needed = num_windows * made.samples_made / max(1, manifest.num_samples)
    return {
        **asdict(measured),
        "num_bytes": num_bytes,
        "samples_per_s": _ratio(measured.samples, measured.seconds),
        "bytes_per_s": _ratio(num_bytes, measured.seconds),
        "windows_read": made.windows_read,
        "windows_reused": made.windows_reused,
        "read_amplification": _ratio(made.windows_read, needed),
        "wait_share": made.wait_share,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES,
        "worker_peak_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * _MAXRSS_BYTES,
    }


def _ratio(amount: float, total: float) -> float:
    return amount / total if total else 0.0


def _summary(url: str, found: dict[str, Any]) -> str:
    if not found["batches"]:
        return f"{url}: no batches: there are fewer samples than a global batch has"
    lines = [
        f"{url}: {found['batches']:,} batches, {found['samples']:,} samples, {human_bytes(found['num_bytes'])} in "
        f"{found['seconds']:.2f} s",
        f"{found['samples_per_s']:,.0f} samples/s, {human_bytes(found['bytes_per_s'])}/s; first batch after "
        f"{found['first_batch_s']:.2f} s",
        f"windows: {found['windows_read']:,} read, {found['windows_reused']:,} requests served from memory; "
        f"each was read {found['read_amplification']:.2f} times on average",
        f"waited for batches {found['wait_share']:.0%} of the time",
        f"memory at most: {human_bytes(found['peak_bytes'])}"
        + (f", and {human_bytes(found['worker_peak_bytes'])} a worker" if found["worker_peak_bytes"] else ""),
    ]
    return "\n".join(lines)
