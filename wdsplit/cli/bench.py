"""`wdsplit bench`: how fast the loader reads a dataset on this machine, and how much memory it uses."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

import wdsplit
from wdsplit.cli.help import command, option
from wdsplit.cli.options import NAMES, batch_size_option, dataset_argument, join_option, order_options, view_options
from wdsplit.cli.progress import progress_bar
from wdsplit.cli.terminal import FAILED, Result, bad, good
from wdsplit.errors import OutputExistsError
from wdsplit.texts import counted, human_bytes, quoted

if TYPE_CHECKING:
    from wdsplit.checks.bench import BenchResult

__all__ = ["bench_command"]


@command(
    "bench",
    [
        "data/train --workers 4 --batch-size 256",
        "data/train --workers 4 --fields jpg,cls --resize 224",
        "data/photos --workers 8 --decode rgb8 --bad-samples-file bad.jsonl",
        "data/train --world-size 8 --rank 3 --step-ms 150",
    ],
    dataset_argument,
    order_options,
    option("Training", "--rank", "Read as this rank.", low=0, default=0),
    batch_size_option(256),
    option(
        "Training",
        "--worker-kind",
        "Run workers as processes or as threads.",
        type=click.Choice(["process", "thread"]),
        default="process",
    ),
    option("Training", "--fields", "Read only these fields.  [default: all]", **NAMES),
    join_option("Training"),
    option(
        "Training",
        "--decode",
        "Decode fields; images with this handler (pil, rgb8).",
        **{**NAMES, "metavar": "HANDLER"},
    ),
    option("Training", "--resize", "Decode fields, and resize images to N x N pixels.", low=1),
    option("Samples", "--epochs", "Read N epochs.", low=1, default=1),
    option("Samples", "--seconds", "Stop after N seconds.", type=click.FloatRange(0, min_open=True)),
    option(
        "Training",
        "--step-ms",
        "Simulate a training step of N milliseconds after each batch.",
        type=click.FloatRange(0),
        default=0.0,
    ),
    option(
        "Output",
        "--bad-samples-file FILE.jsonl",
        "Replace bad samples, and list them in this new file, for `wdsplit view --exclude`.",
    ),
    view_options,
)
def bench_command(
    dataset: str,
    fields: tuple[str, ...],
    decode: tuple[str, ...],
    resize: int | None,
    batch_size: int,
    workers: int,
    worker_kind: Any,
    epochs: int,
    seconds: float | None,
    step_ms: float,
    bad_samples_file: str | None,
    **order: Any,
) -> Result:
    """Measure how fast the loader reads DATASET on this machine.

    Runs wdsplit.Loader as training would, and discards the batches. With --step-ms, simulates a training step after
    each batch: the share of time spent waiting then shows whether the loader keeps up.

    With --bad-samples-file, a damaged sample or one that cannot be decoded does not end the command: it is listed in
    the file, and the exit code is 1.
    """
    from wdsplit.loading.reading.source import name_with_view  # here, because --help needs neither
    from wdsplit.order.bundles import Grouping

    if bad_samples_file is not None:
        if os.path.exists(bad_samples_file):
            remedy = "use another file, or remove it"
            raise OutputExistsError("file already exists", place=bad_samples_file, remedy=remedy)
        order |= {"on_bad_sample": "substitute", "max_bad_samples": 1.0, "bad_samples_file": bad_samples_file}
    read = wdsplit.Dataset(dataset, fields=fields or None, **order)
    handlers: list[Any] = [*decode, *([] if resize is None else [wdsplit.resized(resize)])]
    read = read.decode(*handlers) if handlers else read
    form = read.source.form_at(read.epoch)
    read = read.to_tuple(*fields) if fields and form is None else read
    batch_size = 1 if isinstance(form, Grouping) else batch_size
    is_stacked = form is None or (isinstance(form, Grouping) and not form.budget)
    if bad_samples_file is not None or not (is_stacked or handlers):
        together: Any = len  # bytes cannot be joined, nor images of several sizes
    else:
        together = None
    loader = wdsplit.Loader(read, batch_size, num_workers=workers, workers=worker_kind, collate_fn=together)
    with progress_bar("loading") as bar:
        found = wdsplit.bench(
            loader,
            epochs=epochs,
            seconds=seconds,
            step_s=step_ms / 1000,
            progress=lambda batches, total, samples: bar.update(batches, total, unit="batches", samples=samples),
        )
    source = loader.dataset.source
    rates = {"samples_per_s": found.samples_per_s, "bytes_per_s": found.bytes_per_s}
    view = {"view": source.view_text} if source.view_text else {}
    lines = [_summary(name_with_view(source), found)]
    if found.bad_samples:
        clean = f"wdsplit view {quoted(source.url)} clean --exclude {quoted(bad_samples_file or '')}"
        lines.append(bad(f"{counted(found.bad_samples, 'bad sample')}: ") + f"leave them out with `{clean}`")
    elif bad_samples_file is not None:
        lines.append(f"{good('no bad samples')}: {bad_samples_file} was not written")
    value = {"dataset": source.url, **view, **asdict(found), **rates}
    return Result("\n".join(lines), value, code=FAILED if found.bad_samples else 0)


def _summary(url: str, found: BenchResult) -> str:
    if not found.batches:
        return f"{url}: no batches: fewer samples than a global batch"
    lines = [
        f"{url}: {counted(found.batches, 'batch', 'batches')}, {counted(found.samples, 'sample')}, "
        f"{human_bytes(found.num_bytes)} in {found.seconds:.2f} s",
        f"{found.samples_per_s:,.0f} samples/s, {human_bytes(found.bytes_per_s)}/s; first batch after "
        f"{found.first_batch_s:.2f} s",
        f"waited for batches {100 * found.wait_share:.0f} % of the time",
        f"peak memory: {human_bytes(found.peak_bytes)}"
        + (f", and {human_bytes(found.worker_peak_bytes)} per worker" if found.worker_peak_bytes else ""),
    ]
    return "\n".join(lines)
