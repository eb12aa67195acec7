"""Hugging Face Transformers: a Trainer that accepts wdsplit's datasets.

The Trainer's own arguments configure loading. It counts steps itself and, when it resumes, requests batches only to
skip them: our loader yields placeholders for these and starts after them, so nothing is read or skipped twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from wdsplit.errors import InputError, MissingDependencyError
from wdsplit.integrations.accelerate import PreparedLoader
from wdsplit.integrations.opaque_loader import OpaqueLoader, refuse_bundles, refuse_other_length
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.loading.statistics import Statistics

try:
    from accelerate.utils import recursively_apply
    from transformers import EvalPrediction, Trainer
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise MissingDependencyError.for_extra("transformers") from error

__all__ = ["TrainerMixin", "WdsplitTrainer"]

PAD = "__pad__"


class TrainerMixin:
    """Lets a Trainer use a `wdsplit.Dataset` for training, evaluation and prediction; other datasets work as before.

    `class MyTrainer(TrainerMixin, Seq2SeqTrainer)` does it for any Trainer. Samples are dicts for the Trainer's
    collator. Each rank reads its part once, and epochs are set. `train(resume_from_checkpoint=...)` continues in the
    middle of an epoch, on any number of processes with the same global batch. `compute_metrics` and `predict` get no
    pads; the loss of `evaluate` is the Trainer's mean over batches, pads included.

    Args:
        args: As for the Trainer.
        log_loading: Add the loader's statistics, those of `Statistics.scalars`, to the training logs.
        options: As for the Trainer.
    """

    _pads: list[Any] | None = None
    """During an evaluation, which samples of each batch are pads, on all ranks."""

    _is_made = False
    _train_dataset: Any = None
    _logged: tuple[Loader, Statistics] | None = None

    def __init__(self, *args: Any, log_loading: bool = False, **options: Any) -> None:
        self._log_loading = log_loading
        super().__init__(*args, **options)
        self._is_made = True

    @property
    def train_dataset(self) -> Any:
        """The dataset to train on; None while the Trainer is made, because it would request the length."""
        return self._train_dataset if self._is_made or not isinstance(self._train_dataset, Dataset) else None

    @train_dataset.setter
    def train_dataset(self, dataset: Any) -> None:
        self._train_dataset = dataset

    def get_train_dataloader(self) -> Any:
        """Return the loader to train on.

        Raises:
            InputError: The Trainer's arguments ask for another order than the dataset's.
        """
        trainer: Any = self
        if not isinstance(trainer.train_dataset, Dataset):
            return super().get_train_dataloader()  # type: ignore[misc]
        args, dataset = trainer.args, trainer.train_dataset
        by_length = getattr(args, "group_by_length", False)  # its former name
        strategy = getattr(args, "train_sampling_strategy", "group_by_length" if by_length else "random")
        if strategy != "random" and (strategy != "sequential" or dataset.options.shuffle):
            raise InputError(
                f"train_sampling_strategy={strategy!r} does not work with this dataset",
                place=dataset.source.url,
                expected="'random', or 'sequential' with shuffle=False: the training follows the dataset's own order",
                found=f"shuffle={dataset.options.shuffle}",
                remedy="leave out train_sampling_strategy, and choose the order with the dataset's shuffle=",
            )
        loader = self._loader(dataset, trainer._train_batch_size, "Training")
        self._logged = (loader, loader.statistics()) if self._log_loading else None
        return _TrainingLoader(loader, trainer)

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """Log metrics; add statistics of the loader to the loss of training steps, with `log_loading`."""
        if self._logged is not None and "loss" in logs:
            loader, before = self._logged
            self._logged = loader, loader.statistics()
            logs = {**logs, **self._logged[1].scalars(before, "wdsplit/")}
        super().log(logs, *args, **options)  # type: ignore[misc]

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the loader to evaluate on."""
        dataset: Any = getattr(self, "eval_dataset", None) if eval_dataset is None else eval_dataset
        if isinstance(eval_dataset, str):
            dataset = getattr(self, "eval_dataset", {})[eval_dataset]
        if not isinstance(dataset, Dataset):
            return super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]
        return self._evaluation_loader(dataset, "Evaluation")

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return the loader to predict on."""
        if not isinstance(test_dataset, Dataset):
            return super().get_test_dataloader(test_dataset)  # type: ignore[misc]
        return self._evaluation_loader(test_dataset, "test")

    def num_examples(self, dataloader: Any) -> int:
        """Return how many samples a loader's dataset has."""
        if isinstance(dataloader, OpaqueLoader):
            return dataloader.loader.dataset.source.num_samples_at(dataloader.loader.epoch)
        number: int = super().num_examples(dataloader)  # type: ignore[misc]
        return number

    def _evaluation_loader(self, dataset: Dataset, description: str) -> PreparedLoader:
        trainer: Any = self
        loader = self._loader(dataset, trainer.args.eval_batch_size, description)
        assert loader.collate_fn is not None
        loader.collate_fn = _WithPads(loader.collate_fn, dataset.source.url)
        return PreparedLoader(loader, trainer.accelerator)

    def _loader(self, dataset: Dataset, batch_size: int, description: str) -> Loader:
        """Return a loader that the Trainer's arguments configure.

        Raises:
            InputError: The dataset's tail contradicts them, or ranks would have unequal steps.
        """
        trainer: Any = self
        args, tail = trainer.args, dataset.options.tail
        if tail != ("drop" if args.dataloader_drop_last else "pad"):
            raise InputError(
                "the dataset's tail does not fit the Trainer's arguments",
                place=dataset.source.url,
                expected="tail 'drop' with dataloader_drop_last, else 'pad': all ranks must have equal steps",
                found=f"tail {tail!r}, dataloader_drop_last {args.dataloader_drop_last}",
                remedy="open the dataset with that tail, or change dataloader_drop_last",
            )
        refuse_bundles(dataset, "a Trainer")
        loader = Loader(
            dataset,
            batch_size,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            collate_fn=trainer._get_collator_with_removed_columns(trainer.data_collator, description=description),
            prefetch_factor=args.dataloader_prefetch_factor or 2,
            persistent_workers=args.dataloader_persistent_workers,
            multiprocessing_context=args.dataloader_multiprocessing_context,
        )
        if loader.pin_memory:  # the loader does not pin what a collate_fn returns
            assert loader.collate_fn is not None
            loader.collate_fn = _Pinned(loader.collate_fn)
        return loader

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        """Predict a batch, and record which samples of all ranks are pads."""
        trainer: Any = self
        pads = inputs.pop(PAD, None) if isinstance(inputs, MutableMapping) else None
        if pads is not None and self._pads is not None:
            self._pads.append(trainer.accelerator.gather(pads.to(trainer.args.device)).cpu().numpy())
        return super().prediction_step(model, inputs, *args, **options)  # type: ignore[misc]

    def evaluation_loop(self, dataloader: Any, *args: Any, **options: Any) -> Any:
        """Evaluate without pads.

        Raises:
            InputError: The Trainer is set not to concatenate the results of batches.
        """
        trainer: Any = self
        if not isinstance(dataloader, PreparedLoader):
            return super().evaluation_loop(dataloader, *args, **options)  # type: ignore[misc]
        if not trainer.args.eval_do_concat_batches:
            raise InputError(
                "eval_do_concat_batches=False does not work with a wdsplit.Dataset",
                found="separate batches, from which pads cannot be removed",
                remedy="leave it out",
            )
        compute = trainer.compute_metrics
        pads: list[Any] = []
        self._pads = pads

        def compute_without_pads(prediction: Any, **more: Any) -> Any:
            counted = pads[-1:] if trainer.args.batch_eval_metrics else pads
            names = ("predictions", "label_ids", "inputs", "losses")
            kept = {name: _without(getattr(prediction, name), counted) for name in names}
            return compute(EvalPrediction(**kept), **more)

        trainer.compute_metrics = compute and compute_without_pads
        try:
            result = super().evaluation_loop(dataloader, *args, **options)  # type: ignore[misc]
        finally:
            trainer.compute_metrics, self._pads = compute, None
        kept = {name: _without(getattr(result, name), pads) for name in ("predictions", "label_ids")}
        return result._replace(**kept, num_samples=int(sum((~each).sum() for each in pads)))


class WdsplitTrainer(TrainerMixin, Trainer):
    """Transformers' Trainer, which accepts wdsplit's datasets."""


class _TrainingLoader(PreparedLoader):
    """A loader whose first batches the Trainer can skip: for that, it makes another loader of `dataset`."""

    batch_size = None
    drop_last = False
    prefetch_factor = None

    def __init__(self, loader: Loader, trainer: Any) -> None:
        super().__init__(loader, trainer.accelerator)
        counted = "the Trainer counts its steps by the first epoch"
        remedy = f"{counted}: choose views of equal sizes, or train in a loop of your own"
        for epoch in loader.dataset.source.view_epochs:
            refuse_other_length(loader, epoch, len(loader), remedy)
        self.dataset = _Resumed(self, trainer)
        self.collate_fn = _unchanged


class _Resumed(IterableDataset[Any]):
    """The batches of the epoch in which the Trainer resumes: placeholders for those that it skips, then the rest."""

    def __init__(self, batches: _TrainingLoader, trainer: Any) -> None:
        self._batches = batches
        self._trainer = trainer

    def __iter__(self) -> Iterator[Any]:
        loader, num_batches = self._batches.loader, self._trainer.args.gradient_accumulation_steps
        epoch, update = divmod(self._trainer.state.global_step, max(1, -(-len(loader) // num_batches)))
        skipped = update * num_batches
        loader.set_epoch(epoch)
        position = skipped * loader.batch_size * loader.dataset.world().world_size
        loader.load_state_dict({**loader.state_dict(), "position": position})
        yield from itertools.repeat(None, skipped)
        yield from self._batches


class _Pinned:
    """A collator whose tensors are in pinned memory."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> Any:
        """Collate."""
        return recursively_apply(torch.Tensor.pin_memory, self._collate(samples))


class _WithPads:
    """A collator that keeps the flags of pads, even if the Trainer removes other columns."""

    def __init__(self, collate: Callable[[list[Any]], Any], url: str) -> None:
        self._collate = collate
        self._url = url

    def __call__(self, samples: list[Any]) -> Any:
        """Collate.

        Raises:
            InputError: A sample has no flag.
        """
        if not all(isinstance(sample, Mapping) and PAD in sample for sample in samples):
            raise InputError(
                f"samples have no {PAD}, so an evaluation would count pads",
                place=self._url,
                expected=f"dicts with {PAD}",
                remedy=f"keep it in the stages of the dataset: return {{**new, {PAD!r}: sample[{PAD!r}]}}",
            )
        batch = self._collate([{name: sample[name] for name in sample if name != PAD} for sample in samples])
        batch[PAD] = torch.tensor([bool(sample[PAD]) for sample in samples])
        return batch


def _without(values: Any, pads: Sequence[Any]) -> Any:
    """Return results without the rows of pads; arrays may be nested in tuples, lists and dicts."""
    if isinstance(values, Mapping):
        return {name: _without(value, pads) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return type(values)(_without(value, pads) for value in values)
    return values if values is None or not pads else values[~np.concatenate(pads)]


def _unchanged(batch: Any) -> Any:
    return batch
