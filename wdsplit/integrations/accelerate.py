"""Hugging Face Accelerate: a loader that knows the accelerator's device and its accumulation of gradients.

`Accelerator.prepare` leaves a `wdsplit.Loader` as it is, so nothing is split a second time; but then batches stay where
they are, and gradients that are accumulated at the end of an epoch are not synchronised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wdsplit.errors import InputError, MissingDependencyError
from wdsplit.integrations.delegate import Delegate, steps_left
from wdsplit.loader import Loader

try:
    from accelerate.data_loader import DataLoaderStateMixin
    from accelerate.utils import send_to_device
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "accelerate":
        raise
    raise MissingDependencyError.for_extra("accelerate") from error

__all__ = ["PreparedLoader"]


class PreparedLoader(Delegate, DataLoaderStateMixin):  # type: ignore[misc]
    """A loader whose batches come on the accelerator's device; the last one of an epoch is told to the accelerator.

    It goes to `Accelerator.prepare` or not: nothing changes. With `Accelerator.register_for_checkpointing`, its state
    is saved and loaded with all else. `gather_for_metrics` cuts nothing off: pads are flagged by `__pad__`.

    Args:
        loader: The loader; its `batch_size` is that of a rank.
        accelerator: The accelerator.

    Raises:
        InputError: The accelerator was told to split or dispatch batches by itself.
    """

    def __init__(self, loader: Loader, accelerator: Any) -> None:
        super().__init__(loader)
        for name in ("split_batches", "dispatch_batches"):
            if getattr(accelerator, name):
                raise InputError(
                    f"{name} does not go with a wdsplit.Loader",
                    expected=f"an Accelerator without {name}=True",
                    found="the loader reads only this rank's samples, and its batch_size is that of a rank",
                    remedy=f"leave {name} out of the DataLoaderConfiguration",
                )
        self.accelerator = accelerator
        self.gradient_state = accelerator.gradient_state

    def __iter__(self) -> Iterator[Any]:
        accelerator = self.accelerator
        batches = iter(self.loader)
        left = steps_left(self.loader)
        self.begin()
        self.remainder = 0
        try:
            for batch in batches:
                left -= 1
                self.end_of_dataloader = left == 0
                if accelerator.device_placement:
                    batch = send_to_device(batch, accelerator.device, non_blocking=accelerator.non_blocking)
                yield batch
        finally:
            self.end()
