"""Hugging Face Accelerate: a loader that knows the accelerator's device and its accumulation of gradients.

`Accelerator.prepare` does not change a `wdsplit.Loader`, so nothing is split a second time. But then batches are not
moved to the device, and gradients that are accumulated at the end of an epoch are not synchronised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wdsplit.errors import InputError, MissingDependencyError
from wdsplit.integrations.opaque_loader import OpaqueLoader, check_ranks
from wdsplit.loading.loader import Loader
from wdsplit.loading.world import detect_rank
from wdsplit.order.split import World

try:
    from accelerate.data_loader import DataLoaderStateMixin
    from accelerate.utils import send_to_device
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "accelerate":
        raise
    raise MissingDependencyError.for_extra("accelerate") from error

__all__ = ["PreparedLoader"]


class PreparedLoader(OpaqueLoader, DataLoaderStateMixin):  # type: ignore[misc]
    """A loader that delivers batches on the accelerator's device, and notifies it of the last one of an epoch.

    It works with or without `Accelerator.prepare`. `Accelerator.register_for_checkpointing` saves and loads its state
    with the rest. `gather_for_metrics` removes no samples: leave out pads by their flag `__pad__`.

    Args:
        loader: The loader; its `batch_size` is per rank.
        accelerator: The accelerator.

    Raises:
        InputError: The accelerator is configured to split or dispatch batches by itself.
        TopologyError: The dataset is split among all processes, but some of them must read the same samples.
    """

    def __init__(self, loader: Loader, accelerator: Any) -> None:
        super().__init__(loader)
        for name in ("split_batches", "dispatch_batches"):
            if getattr(accelerator, name):
                raise InputError(
                    f"a wdsplit.Loader does not support {name}",
                    expected=f"an Accelerator without {name}=True",
                    found="the loader reads only this rank's samples, and its batch_size is that of a rank",
                    remedy=f"leave {name} out of the DataLoaderConfiguration",
                )
        mesh = getattr(accelerator, "torch_device_mesh", None)
        if mesh is not None:  # along its dimensions `tp` and `cp`, processes read the same samples
            names = tuple(accelerator.parallelism_config.dp_dim_names)
            expected = detect_rank(group=mesh[names]) if names else World()
            group = f"process_group=accelerator.torch_device_mesh[{', '.join(map(repr, names))}]"
            remedy = f"open the dataset with {group if names else 'rank=0 and world_size=1'}"
            check_ranks(loader, expected.rank, expected.world_size, "the accelerator", remedy)
        self.accelerator = accelerator
        self.gradient_state = accelerator.gradient_state

    def __iter__(self) -> Iterator[Any]:
        accelerator = self.accelerator
        batches = iter(self.loader)
        self.begin()
        self.remainder = 0
        try:
            for batch in batches:
                self.end_of_dataloader = not batches.left
                if accelerator.device_placement:
                    batch = send_to_device(batch, accelerator.device, non_blocking=accelerator.non_blocking)
                yield batch
        finally:
            self.end()

    def _is_accumulating(self) -> bool:
        return not self.accelerator.sync_gradients
