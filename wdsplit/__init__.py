"""Convert tables to balanced WebDataset shards, and stream them into distributed training: each sample exactly once.

    wdsplit.convert("raw/*.parquet", "data/train")
    loader = wdsplit.Loader(wdsplit.Dataset("data/train").decode("pil").to_tuple("jpg", "cls"), batch_size=256)

Names are imported when they are first used: `import wdsplit` loads neither torch nor webdataset.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from wdsplit import notebook
from wdsplit.errors import (
    ConvertError,
    CorruptDataError,
    DatasetNotFoundError,
    InputError,
    MissingDependencyError,
    OutputExistsError,
    PipelineError,
    SampleNotFoundError,
    StateError,
    StorageError,
    TopologyError,
    UnansweredError,
    UnsizedError,
    WdsplitError,
)

if TYPE_CHECKING:
    from wdsplit.annotating.annotate import annotate, drop_annotation, list_annotations
    from wdsplit.annotating.mapping import map_samples
    from wdsplit.annotating.options import AnnotateOptions, MapOptions
    from wdsplit.checks.audit import AuditOptions, audit
    from wdsplit.checks.batch import batch, batches
    from wdsplit.checks.bench import bench
    from wdsplit.checks.inspect import assign, inspect
    from wdsplit.checks.verify import verify
    from wdsplit.conversion.adopt_tars import index_tars
    from wdsplit.conversion.append import list_versions
    from wdsplit.conversion.convert import convert, convert_splits
    from wdsplit.conversion.plan.options import ConvertOptions, IndexOptions
    from wdsplit.conversion.planning import plan
    from wdsplit.conversion.shares import commit_shares, convert_share, plan_shares
    from wdsplit.engines.ray import RayEngine
    from wdsplit.erasing.erase import erase
    from wdsplit.erasing.gc import gc
    from wdsplit.fields.decode import decode_field
    from wdsplit.loading.dataset import Dataset
    from wdsplit.loading.epoch_shard_list import EpochShardList
    from wdsplit.loading.loader import Loader
    from wdsplit.loading.mix import mix
    from wdsplit.loading.reading.source import AnySource
    from wdsplit.loading.samples import Samples
    from wdsplit.loading.stages.decoders import decode_sample_stage
    from wdsplit.loading.stages.images import resized
    from wdsplit.loading.to_device import to_device
    from wdsplit.loading.world import detect_rank
    from wdsplit.order.views import View
    from wdsplit.reporting.cluster import Cluster, Topology
    from wdsplit.reporting.croissant import croissant
    from wdsplit.reporting.options import ReportOptions
    from wdsplit.reporting.report import Report, report
    from wdsplit.tar.names import unescape_key
    from wdsplit.views.make import drop_view, list_views, make_view

    __version__: str

__all__ = [
    "AnnotateOptions",
    "AuditOptions",
    "Cluster",
    "ConvertError",
    "ConvertOptions",
    "CorruptDataError",
    "Dataset",
    "DatasetNotFoundError",
    "EpochShardList",
    "IndexOptions",
    "InputError",
    "Loader",
    "MapOptions",
    "MissingDependencyError",
    "OutputExistsError",
    "PipelineError",
    "RayEngine",
    "Report",
    "ReportOptions",
    "SampleNotFoundError",
    "Samples",
    "StateError",
    "StorageError",
    "Topology",
    "TopologyError",
    "UnansweredError",
    "UnsizedError",
    "View",
    "WdsplitError",
    "annotate",
    "assign",
    "audit",
    "batch",
    "batches",
    "bench",
    "commit_shares",
    "convert",
    "convert_share",
    "convert_splits",
    "croissant",
    "decode_field",
    "decode_sample_stage",
    "detect_rank",
    "drop_annotation",
    "drop_view",
    "erase",
    "gc",
    "index_tars",
    "inspect",
    "list_annotations",
    "list_versions",
    "list_views",
    "make_view",
    "map_samples",
    "mix",
    "plan",
    "plan_shares",
    "report",
    "resized",
    "to_device",
    "unescape_key",
    "verify",
]

_NAMES = {
    "annotating.annotate": "annotate drop_annotation list_annotations",
    "annotating.mapping": "map_samples",
    "annotating.options": "AnnotateOptions MapOptions",
    "checks.audit": "AuditOptions audit",
    "checks.batch": "batch batches",
    "checks.bench": "bench",
    "checks.inspect": "assign inspect",
    "checks.verify": "verify",
    "conversion.adopt_tars": "index_tars",
    "conversion.append": "list_versions",
    "conversion.convert": "convert convert_splits",
    "conversion.plan.options": "ConvertOptions IndexOptions",
    "conversion.planning": "plan",
    "conversion.shares": "commit_shares convert_share plan_shares",
    "engines.ray": "RayEngine",
    "erasing.erase": "erase",
    "erasing.gc": "gc",
    "fields.decode": "decode_field",
    "loading.dataset": "Dataset",
    "loading.epoch_shard_list": "EpochShardList",
    "loading.loader": "Loader",
    "loading.mix": "mix",
    "loading.samples": "Samples",
    "loading.stages.decoders": "decode_sample_stage",
    "loading.stages.images": "resized",
    "loading.to_device": "to_device",
    "loading.world": "detect_rank",
    "order.views": "View",
    "reporting.cluster": "Cluster Topology",
    "reporting.croissant": "croissant",
    "reporting.options": "ReportOptions",
    "reporting.report": "Report report",
    "tar.names": "unescape_key",
    "views.make": "drop_view list_views make_view",
}
"""The public names of each module, which is imported when one of them is used."""

_MODULES = {name: f"wdsplit.{module}" for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version(__name__)
    if name not in _MODULES:
        raise AttributeError(f"module 'wdsplit' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise MissingDependencyError.for_extra("torch") from error


def _make_preview(source: AnySource, n: int, seed: int) -> notebook.Preview:
    from wdsplit.reporting.preview import preview

    return preview(source, n, seed)


notebook.make_preview = _make_preview


def __dir__() -> list[str]:
    return sorted(__all__)
