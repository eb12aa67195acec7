"""Lightning: a DataModule of wdsplit's loaders, and a callback for your own loaders.

Lightning saves and loads the state of its training loader by itself. It calls `iter` on the loader before it needs a
batch. It counts the batches of an epoch itself, and starts the first iteration before its epoch starts.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from wdsplit.errors import MissingDependencyError
from wdsplit.integrations.opaque_loader import OpaqueLoader, check_ranks, refuse_other_length
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader, loader_of

__all__ = ["EpochCallback", "WdsplitDataModule"]


def _lightning() -> Any:
    """Import the Lightning that the program uses: `lightning`, or `pytorch_lightning`, which has other classes."""
    names = ["lightning.pytorch", "pytorch_lightning"]
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != name.partition(".")[0]:
                raise
    raise MissingDependencyError.for_extra("lightning")


_library = _lightning()


class WdsplitDataModule(_library.LightningDataModule):  # type: ignore[misc, name-defined]
    """The loaders for training, validation and test; it sets epochs and resumes by itself.

    A Lightning checkpoint contains the progress of the training loader. It resumes in the middle of an epoch, on any
    number of ranks and workers. For an exact evaluation keep `__pad__` in the batches, and leave out flagged samples.
    Subclasses may have their own hooks (`val_dataloader`, ...), and put other loaders into `loaders`.

    Args:
        train: The dataset to train on.
        val: The dataset to validate on, usually with `shuffle=False`.
        test: The dataset to test on.
        batch_size: Samples per batch and rank.
        eval_batch_size: The same for validation and test; None for `batch_size`.
        options: Options of `wdsplit.Loader`: `num_workers`, `pin_memory`, `collate_fn`, ...

    Attributes:
        loaders: The loaders, by `train`, `val` and `test`.

    Raises:
        InputError: An argument is invalid.
    """

    def __init__(
        self,
        train: Dataset | None = None,
        val: Dataset | None = None,
        test: Dataset | None = None,
        *,
        batch_size: int,
        eval_batch_size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        datasets = {"train": train, "val": val, "test": test}
        eval_batch_size = batch_size if eval_batch_size is None else eval_batch_size
        sizes = {"train": batch_size, "val": eval_batch_size, "test": eval_batch_size}
        self.loaders = {
            name: Loader(dataset, sizes[name], **options) for name, dataset in datasets.items() if dataset is not None
        }
        for name in self.loaders:  # Lightning warns of hooks that exist but cannot be used
            hook = f"{name}_dataloader"
            if getattr(type(self), hook) is getattr(_library.LightningDataModule, hook):
                setattr(self, hook, getattr(self, f"{name}_loader"))

    def train_loader(self) -> OpaqueLoader:
        """Return the loader to train on."""
        loader = self._checked("train")
        return OpaqueLoader(loader) if self.trainer is None else _TrainingLoader(loader, self.trainer)

    def val_loader(self) -> OpaqueLoader:
        """Return the loader to validate on."""
        return OpaqueLoader(self._checked("val"))

    def test_loader(self) -> OpaqueLoader:
        """Return the loader to test on."""
        return OpaqueLoader(self._checked("test"))

    def _checked(self, name: str) -> Loader:
        """Return a loader, if it has the strategy's ranks: with tensor parallelism several processes are one rank.

        Raises:
            TopologyError: The ranks differ.
        """
        loader = self.loaders[name]
        expected = None if self.trainer is None else self.trainer.distributed_sampler_kwargs
        if expected is not None:
            remedy = (
                "open the dataset with rank= and world_size=; or, once there is a mesh (in setup() of a subclass), "
                "with process_group=self.trainer.strategy.device_mesh['data_parallel'], and put its loader into "
                f"self.loaders[{name!r}]"
            )
            check_ranks(loader, expected["rank"], expected["num_replicas"], "the strategy", remedy)
        return loader


class _TrainingLoader(OpaqueLoader):
    """A loader that follows the trainer's epoch, and corrects the trainer's count of batches when it resumes."""

    def __init__(self, loader: Loader, trainer: Any) -> None:
        super().__init__(loader)
        self._trainer = trainer

    def __iter__(self) -> Iterator[Any]:
        self.loader.set_epoch(_epoch(self._trainer))
        _check_length(self._trainer, self.loader)
        yield from self.loader

    def __len__(self) -> int:
        """Return the number of steps in the trainer's epoch, also before a checkpoint is loaded."""
        return self.loader.progress.num_steps(_epoch(self._trainer))

    def _is_accumulating(self) -> bool:
        trainer = self._trainer
        done = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        return bool(done % trainer.accumulate_grad_batches) and done < trainer.num_training_batches

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where a state dict was taken, and correct the trainer's count of batches.

        The checkpoint counts batches for the batch size and number of ranks that it was saved with.
        """
        super().load_state_dict(state_dict)
        epoch, progress = _epoch(self._trainer), self._trainer.fit_loop.epoch_loop.batch_progress
        if self.epoch == epoch and state_dict["position"]:
            done, _ = self.loader.progress.counts_of(epoch)
        elif self.epoch == epoch + 1 and progress.is_last_batch:
            done = len(self)
        else:
            return
        shift = done - progress.current.processed
        for name in ("ready", "started", "processed", "completed"):
            setattr(progress.current, name, getattr(progress.current, name) + shift)


class EpochCallback(_library.Callback):  # type: ignore[misc, name-defined]
    """Sets the epoch of each training `wdsplit.Loader`, and of each `Dataset` in torch's DataLoader.

    `WdsplitDataModule` does not need it.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Restart the first iteration if Lightning has started it in another epoch."""
        if self._set_epoch(trainer):
            iter(trainer.fit_loop._data_fetcher)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Set the epoch.

        Raises:
            InputError: The epoch has more or fewer batches than Lightning has counted.
        """
        self._set_epoch(trainer)
        for leaf in _leaves(trainer.train_dataloader):
            if isinstance(leaf, (OpaqueLoader, Loader)):
                _check_length(trainer, loader_of(leaf))

    def _set_epoch(self, trainer: Any) -> bool:
        """Set the epoch of all loaders and datasets; return whether any was in another epoch."""
        epoch = _epoch(trainer)
        leaves = [
            leaf if isinstance(leaf, (OpaqueLoader, Loader)) else getattr(leaf, "dataset", None)
            for leaf in _leaves(trainer.train_dataloader)
        ]
        ours = [leaf for leaf in leaves if isinstance(leaf, (OpaqueLoader, Loader, Dataset))]
        others = [each for each in ours if each.epoch != epoch]
        for each in others:
            each.set_epoch(epoch)
        return bool(others)


def _check_length(trainer: Any, loader: Loader) -> None:
    """Refuse an epoch whose view has another number of batches than Lightning has counted.

    Raises:
        InputError: The numbers differ.
    """
    counts_whole_epochs = trainer.limit_train_batches == 1.0 and not trainer.overfit_batches
    is_only_loader = len(list(_leaves(trainer.train_dataloader))) == 1
    if loader.dataset.source.view_text and counts_whole_epochs and is_only_loader:
        remedy = "let Lightning count anew: Trainer(reload_dataloaders_every_n_epochs=1)"
        refuse_other_length(loader, _epoch(trainer), trainer.num_training_batches, remedy)


def _epoch(trainer: Any) -> int:
    """Return the trainer's current or next epoch; after a resume, its `current_epoch` is updated only later."""
    return 0 if trainer.overfit_batches else int(trainer.fit_loop.epoch_progress.current.processed)


def _leaves(loaders: Any) -> Iterator[Any]:
    """Yield the loaders in nested collections."""
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    if isinstance(loaders, (list, tuple)):
        for each in loaders:
            yield from _leaves(each)
    else:
        yield loaders
