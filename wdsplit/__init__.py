"""wdsplit: parquet tables as balanced WebDataset shards, streamed exactly once into distributed training.

`import wdsplit` loads neither torch nor webdataset: public names are imported from their packages when they are used.
"""

from __future__ import annotations

import importlib
import logging
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

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
    from wdsplit.conversion.adopt_tars import IndexOptions, index_tars
    from wdsplit.conversion.convert import convert, convert_splits
    from wdsplit.conversion.plan.options import ConvertOptions, PlanOptions
    from wdsplit.conversion.shares import commit_shares, convert_share, plan_shares
    from wdsplit.engines.ray import RayEngine
    from wdsplit.fields.decode import decode_field
    from wdsplit.loading.dataset import Dataset
    from wdsplit.loading.epoch_shard_list import EpochShardList
    from wdsplit.loading.loader import Loader
    from wdsplit.loading.mix import mix
    from wdsplit.loading.stages.decoders import decode_sample_stage
    from wdsplit.loading.stages.images import resized
    from wdsplit.loading.world import detect_rank
    from wdsplit.tar.names import unescape_key

__all__ = [
    "ConvertError",
    "ConvertOptions",
    "CorruptDataError",
    "Dataset",
    "DatasetNotFoundError",
    "EpochShardList",
    "IndexOptions",
    "InputError",
    "Loader",
    "MissingDependencyError",
    "OutputExistsError",
    "PipelineError",
    "PlanOptions",
    "RayEngine",
    "SampleNotFoundError",
    "StateError",
    "StorageError",
    "TopologyError",
    "UnansweredError",
    "UnsizedError",
    "WdsplitError",
    "commit_shares",
    "convert",
    "convert_share",
    "convert_splits",
    "decode_field",
    "decode_sample_stage",
    "detect_rank",
    "index_tars",
    "mix",
    "plan_shares",
    "resized",
    "unescape_key",
]

__version__ = version("wdsplit")

logging.getLogger(__name__).addHandler(logging.NullHandler())

_LAZY = {
    "ConvertOptions": "wdsplit.conversion.plan.options",
    "Dataset": "wdsplit.loading.dataset",
    "EpochShardList": "wdsplit.loading.epoch_shard_list",
    "IndexOptions": "wdsplit.conversion.adopt_tars",
    "Loader": "wdsplit.loading.loader",
    "PlanOptions": "wdsplit.conversion.plan.options",
    "RayEngine": "wdsplit.engines.ray",
    "commit_shares": "wdsplit.conversion.shares",
    "convert": "wdsplit.conversion.convert",
    "convert_share": "wdsplit.conversion.shares",
    "convert_splits": "wdsplit.conversion.convert",
    "decode_field": "wdsplit.fields.decode",
    "decode_sample_stage": "wdsplit.loading.stages.decoders",
    "detect_rank": "wdsplit.loading.world",
    "index_tars": "wdsplit.conversion.adopt_tars",
    "mix": "wdsplit.loading.mix",
    "plan_shares": "wdsplit.conversion.shares",
    "resized": "wdsplit.loading.stages.images",
    "unescape_key": "wdsplit.tar.names",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'wdsplit' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise MissingDependencyError.for_extra("torch") from error


def __dir__() -> list[str]:
    return sorted(__all__)
