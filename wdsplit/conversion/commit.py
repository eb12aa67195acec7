"""The commit of a conversion: once all shards exist, writes sidecars and manifest, the header last."""

from __future__ import annotations

import dataclasses
import platform
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa

from wdsplit.conversion.job import Published
from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.run import Run
from wdsplit.order.defaults import default_window
from wdsplit.shards.files import write_manifest
from wdsplit.shards.manifest import Manifest
from wdsplit.shards.sidecars import write_sidecars

__all__ = ["build_manifest", "commit"]


def commit(run: Run, plan: Plan, emit: tuple[str, ...], shards: Published) -> Manifest:
    """Finish a run whose shards all exist: write the manifest, and remove the run's files.

    Raises:
        WdsplitError: A file is missing from the output, or the output is not writable.
    """
    manifest = build_manifest(plan, emit, shards)
    write_sidecars(run.storage, manifest, emit)
    run.refuse_incomplete(plan, manifest.shards)
    write_manifest(run.storage, manifest)
    run.finish()
    return manifest


def build_manifest(plan: Plan, emit: tuple[str, ...], published: Published) -> Manifest:
    """Return the manifest of all shards."""
    window = plan.options.window or default_window(published.num_bytes, published.num_samples, plan.lanes)
    provenance = _provenance(plan, emit)
    return Manifest(published.table(), plan.fields, plan.lanes, window, plan.options.pad, provenance, plan.samples)


def _provenance(plan: Plan, emit: tuple[str, ...]) -> dict[str, Any]:
    return {
        "plan": plan.hash,
        "inputs": [
            {"path": file.path, "num_bytes": file.num_bytes, "num_rows": file.num_rows} for file in plan.table.files
        ],
        "num_rows": plan.table.total_rows,
        "num_selected": plan.num_rows,
        **({"num_empty": plan.table.num_empty} if plan.table.num_empty else {}),
        "selection": plan.table.selection.to_json(),
        "num_dropped": plan.num_dropped,
        "key": plan.key,
        **({"label": dataclasses.asdict(plan.label)} if plan.label else {}),
        "options": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(plan.options).items()
        },
        "emit": list(emit),
        "versions": {
            "wdsplit": version("wdsplit"),
            "pyarrow": pa.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
