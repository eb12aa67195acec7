"""What a loader does while it trains, as scalars for any log of metrics."""

from __future__ import annotations

from typing import Any

from wdsplit.errors import InputError
from wdsplit.loading.loader import Loader

__all__ = ["Monitor", "loader_of"]


class Monitor:
    """Scalars of a loader for TensorBoard, W&B, MLflow or any other log; rates are those since the last call.

        monitor = wdsplit.Monitor(loader)
        for step, batch in enumerate(loader):
            train_step(batch)
            if step % 50 == 0:
                wandb.log(monitor.scalars(), step=step)

    Args:
        loader: A `wdsplit.Loader`, an integration's loader, or the audit of one.
        prefix: Prefix of all names.

    Attributes:
        loader: The `wdsplit.Loader` itself.

    Raises:
        InputError: `loader` is none of these.
    """

    def __init__(self, loader: Any, prefix: str = "wdsplit/") -> None:
        self.loader = loader_of(loader)
        self._prefix = prefix
        self._before = self.loader.statistics()

    def scalars(self) -> dict[str, float]:
        """Return what this rank's loader has done since the last call, or since the monitor was made.

            wandb.log(monitor.scalars(), step=1200)

        Rates count the time in which the training waited for batches or used them, not a validation between epochs.

        Returns:
            `wdsplit/samples_per_s`; `wdsplit/bytes_per_s`, of payloads; `wdsplit/fetched_bytes_per_s`, from remote
            storage; `wdsplit/wait_share`, from 0 to 1; `wdsplit/retries` and `wdsplit/bad_samples`, since the loader
            was made; `wdsplit/epoch` and `wdsplit/position`, as in the loader's `state_dict`.
        """
        before, self._before = self._before, self.loader.statistics()
        return {f"{self._prefix}{name}": value for name, value in self._before.scalars(before).items()}


def loader_of(loader: Any) -> Loader:
    """Return the loader itself of an integration's loader, or of an audit.

    Raises:
        InputError: `loader` is none of these.
    """
    found = loader if isinstance(loader, Loader) else getattr(loader, "loader", getattr(loader, "_loader", None))
    if not isinstance(found, Loader):
        raise InputError(
            "not a wdsplit loader",
            expected="a wdsplit.Loader, the audit of one, or an integration's loader",
            found=type(loader).__name__,
        )
    return found
