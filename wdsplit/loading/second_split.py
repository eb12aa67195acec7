"""Refuse loops that would split a rank's samples among the ranks a second time, or count them wrongly.

A `Dataset` gives each rank its share. Libraries that treat it as the whole (Accelerate's `prepare`, and the Trainer of
Transformers) split that share again, and most samples of the epoch are lost.

Only the call stack shows them: webdataset's pipelines call `iter(dataset)` and nothing else, and the Trainer asks for
`len(dataset)` and passes over the answer that there is none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from wdsplit.errors import InputError
from wdsplit.order.split import World

__all__ = ["refuse_counting_trainer", "refuse_second_split", "refuse_splitters"]

_WITH_TRAINER = "use wdsplit.integrations.transformers.WdsplitTrainer instead of Trainer"
_WITH_ACCELERATE = (
    "prepare wdsplit.integrations.accelerate.PreparedLoader(wdsplit.Loader(dataset, batch_size), accelerator) instead"
)


def refuse_second_split(url: str, find_world: Callable[[], World]) -> None:
    """Refuse to continue if an object on the call stack would split the samples again.

    Such an object can be iterated, has a dataset, and says among how many processes it divides it. All ranks find the
    same, so none of them waits for another. Or it is a pipeline with one of webdataset's stages that split.

    Raises:
        InputError: The samples would be split a second time.
    """
    owners = list(_owners_of_frames())
    for owner in owners:
        stages = getattr(owner, "__dict__", {}).get("pipeline")
        refuse_splitters(stages if isinstance(stages, list) else (), url)
    splitting = [owner for owner in owners if _processes_that_share(owner) > 1]
    if not splitting:
        return
    world = find_world()
    if world.world_size == 1:
        return
    kind = type(splitting[0])
    libraries = {type(owner).__module__.partition(".")[0] for owner in owners}
    raise InputError(
        "the samples would be split among the ranks a second time",
        place=url,
        expected=f"rank {world.rank} of {world.world_size} reads all of its own share",
        found=f"{kind.__module__}.{kind.__qualname__} splits it among {_processes_that_share(splitting[0])} processes",
        remedy=_WITH_TRAINER if "transformers" in libraries else _WITH_ACCELERATE,
        url=url,
    )


def refuse_splitters(stages: Iterable[Any], url: str) -> None:
    """Refuse webdataset's stages that split, in a pipeline whose samples are a rank's and worker's share already.

    Raises:
        InputError: There is one.
    """
    shardlists = sys.modules.get("webdataset.shardlists")
    if shardlists is None:  # then no stage is webdataset's
        return
    splitters = (shardlists.split_by_node, shardlists.split_by_worker)
    names = [stage.__name__ for stage in stages if any(stage is each for each in splitters)]
    if names:
        raise InputError(
            "the samples would be split a second time",
            place=url,
            expected="each rank and worker reads all of its own share",
            found=f"webdataset's {' and '.join(names)} after a Dataset, which splits by itself",
            remedy=f"remove {' and '.join(names)}; they belong only after a wdsplit.EpochShardList",
            url=url,
        )


def refuse_counting_trainer(dataset: Any, url: str) -> None:
    """Refuse to continue if an object in its `__init__` would count steps by the length of its `train_dataset`.

    The Trainer of Transformers does so. Its own error, that there is no length, does not say what to write.

    Raises:
        InputError: There is such an object.
    """
    for owner in _owners_of_frames("__init__"):
        attributes = getattr(owner, "__dict__", {})
        max_steps = getattr(attributes.get("args"), "max_steps", None)
        if attributes.get("train_dataset") is dataset and isinstance(max_steps, int) and max_steps <= 0:
            raise InputError(
                "the Trainer would count its steps by the length of the dataset",
                place=url,
                expected="a Trainer that counts the steps of wdsplit's loader",
                found=f"{type(owner).__module__}.{type(owner).__qualname__} with max_steps = {max_steps}",
                remedy=_WITH_TRAINER,
                url=url,
            )


def _owners_of_frames(method: str = "") -> Iterator[Any]:
    """Give `self` of each method that is being called, innermost first; in a forked worker also its parent's.

    Args:
        method: Only of methods of this name; empty for all.
    """
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if method in ("", code.co_name) and "self" in code.co_varnames[: code.co_argcount]:
            yield frame.f_locals.get("self")
        frame = frame.f_back  # type: ignore[assignment]


def _processes_that_share(owner: Any) -> int:
    """Return among how many processes an object divides its dataset; 1 if it does not."""
    attributes = getattr(owner, "__dict__", {})
    if not hasattr(type(owner), "__iter__") or not {"dataset", "base_dataloader"} & attributes.keys():
        return 1
    counts = [attributes.get("num_processes"), getattr(attributes.get("state"), "num_processes", None)]
    return max((count for count in counts if isinstance(count, int)), default=1)
