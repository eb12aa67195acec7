"""TensorFlow: a loader's batches as a `tf.data.Dataset` that TensorFlow does not split a second time.

Adapter over `wdsplit.Loader`; torch need not be installed. TensorFlow prefetches batches, so there are two loaders: one
makes them, and a copy of it, which is not iterated, is at the last batch that was reported as used. TensorFlow is
imported when a loader is made.
"""

from __future__ import annotations

import copy
import importlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from wdsplit.errors import InputError, MissingDependencyError
from wdsplit.integers import at_least
from wdsplit.integrations.opaque_loader import OpaqueLoader, refuse_bundles
from wdsplit.loading.loader import Loader
from wdsplit.loading.transport.collate import as_array

__all__ = ["TensorFlowLoader"]

logger = logging.getLogger(__name__)


class TensorFlowLoader(OpaqueLoader):
    """The batches of a loader for TensorFlow.

    Iterating yields the batches of an epoch as tensors. `dataset` returns them as a `tf.data.Dataset`.

    Args:
        loader: The loader, with threads as workers, or without workers: TensorFlow's process should not be forked.
        prefetch: Batches that TensorFlow prefetches.
        element_spec: A tf.TensorSpec for each leaf of a batch; None to derive it from a first batch, which is read for
            that. Needed if the shapes of batches differ.

    Raises:
        InputError: An argument is invalid, or batches have values that cannot be tensors.
        MissingDependencyError: TensorFlow is not installed.
    """

    def __init__(self, loader: Loader, *, prefetch: int = 2, element_spec: Any = None) -> None:
        self._prefetch = at_least(0, "prefetch", prefetch)
        super().__init__(loader)
        if loader.collate_fn is None:
            refuse_bundles(loader.dataset, "a TensorFlowLoader without a collate_fn")
        try:
            self._tf = importlib.import_module("tensorflow")
        except ModuleNotFoundError as error:
            if error.name != "tensorflow":
                raise
            raise MissingDependencyError.for_extra("tensorflow") from error
        self.element_spec = self._first_spec() if element_spec is None else element_spec
        self._position = copy.copy(loader)
        self._begun: dict[str, Any] | None = None  # the state with which the last iteration began
        self._made: deque[tuple[int, dict[str, Any]]] = deque()  # of batches not used yet: epoch, and state after it
        self._reports_use = False
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the epoch, or what is left of it after `load_state_dict`, as tensors."""
        self._reports_use = True
        dataset = self.dataset(epochs=1)
        try:
            for batch in dataset:
                self._note_used(1)
                yield batch
        except self._tf.errors.OpError as error:
            if self._error is None:
                raise
            raise self._error from error

    def dataset(self, epochs: int | None = None) -> Any:
        """Return a tf.data.Dataset of the batches of `epochs` epochs, one after another; None for endless epochs.

        It starts at the loader's position when it is iterated, with the rest of an epoch after `load_state_dict`. Its
        options keep TensorFlow from sharding it and from adding its own prefetch: end your own stages with a
        `prefetch`.

        Only Keras with `callback` reports which batches were used. With it, an endless dataset that is iterated again
        (by another `fit`) continues after the used batches; a finite one starts the epoch again. Without it, the
        batches of an epoch count as used only when its last one was made. Then `state_dict` is not exact, and an
        interrupted epoch starts again, which is logged.

        Raises:
            InputError: `epochs` is not an integer of at least 1, or it is None but an epoch has no batch.
        """
        if epochs is not None:
            epochs = at_least(1, "epochs", epochs, also=", or None")
        elif not len(self):
            raise _no_batch(self.loader, " in an epoch, so epochs=None would never end")
        tf = self._tf

        def batches() -> Iterator[Any]:
            return self._batches(epochs)

        dataset = tf.data.Dataset.from_generator(batches, output_signature=self.element_spec)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        # Otherwise TensorFlow adds a prefetch of its own, which may reach the end of the epoch.
        options.experimental_optimization.inject_prefetch = False
        dataset = dataset.with_options(options)
        return dataset.prefetch(self._prefetch) if self._prefetch else dataset

    def callback(self) -> Any:
        """Return a Keras callback that reports the batches `fit` has used, so that `state_dict` is exact during it."""
        used: Callable[[int], None] = self._note_used
        self._reports_use = True

        class Used(self._tf.keras.callbacks.Callback):  # type: ignore[misc,name-defined]
            seen = 0

            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                self.seen = 0

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                used(batch + 1 - self.seen)
                self.seen = batch + 1

        return Used()

    def enumerate(self) -> Iterator[tuple[int, Any]]:
        """Iterate this loader, and yield each batch with the number of its step, as `wdsplit.Loader.enumerate` does."""
        self._restart()
        yield from super().enumerate()

    def skip(self, first: int, last: int) -> None:
        """Skip steps, as `wdsplit.Loader.skip` does, before an epoch begins or right after `load_state_dict`.

        Raises:
            InputError: An iteration has started, or as for `wdsplit.Loader.skip`.
        """
        if self._is_begun():
            raise InputError(
                "cannot skip steps while batches are prefetched",
                expected="skip before the epoch begins, or right after load_state_dict",
                remedy="loader.load_state_dict(loader.state_dict()), then skip, then iterate",
            )
        super().skip(first, last)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where a state dict was taken: the next iteration yields the rest of its epoch.

        Raises:
            StateError: The state belongs to another dataset or other options.
        """
        super().load_state_dict(state_dict)
        self._begun, self._made = None, deque()  # the batches of earlier iterations count no more

    def _is_begun(self) -> bool:
        """Tell whether the epoch of the position is the one in which the last iteration began."""
        return self._begun is not None and self._begun["epoch"] == self.epoch

    def _restart(self) -> None:
        """Go back to where an interrupted iteration began, as `wdsplit.Loader` does."""
        if self._begun is not None and self._is_begun():
            self.load_state_dict(self._begun)

    def _batches(self, epochs: int | None) -> Iterator[Any]:
        """Yield batches as numpy arrays, and note the state after each. Runs in a thread of TensorFlow."""
        # If no more than these were made, a library may only have looked at a first batch: nothing is lost.
        is_lost = epochs is None and not self._reports_use and len(self._made) > self._prefetch + 2
        if epochs is not None:
            self._restart()
        made = self._made = deque()
        self._error, given, loader = None, 0, self.loader
        begun = self._begun = self.state_dict()
        try:
            loader.load_state_dict(begun)
            if is_lost:
                logger.warning(
                    "%s: epoch %d starts again at position %d: without this loader's callback() in fit, it is unknown "
                    "which of its batches were used",
                    loader.dataset.source.url,
                    begun["epoch"],
                    begun["position"],
                )
            while given != epochs:
                epoch = loader.epoch
                for batch in loader:
                    made.append((epoch, loader.state_dict()))
                    yield _mapped(batch, _value)
                given += 1
                if not self._reports_use and self._made is made:
                    made.clear()
                    self._position.load_state_dict(loader.state_dict())
        except Exception as error:
            self._error = error
            raise

    def _note_used(self, count: int) -> None:
        """Record that the next batches were used."""
        made = self._made
        for _ in range(min(count, len(made))):
            epoch, state = made.popleft()
            if epoch == self.epoch:  # else another one was chosen meanwhile
                self._position.load_state_dict(state)

    def _first_spec(self) -> Any:
        """Return the spec of a first batch, which a separate loader reads."""
        mine, tf = self.loader, self._tf
        probe = Loader(mine.dataset, mine.batch_size, collate_fn=mine.collate_fn, output=mine.output)
        batch = next(iter(probe), None)
        if batch is None:
            raise _no_batch(mine, " to derive the element spec from")
        is_full = mine.dataset.options.tail != "uneven" and mine.collate_fn is None

        def spec(value: Any, name: str) -> Any:
            array = _value(value, name)
            shape = (mine.batch_size if is_full else None, *array.shape[1:]) if array.ndim else ()
            return tf.TensorSpec(shape, tf.string if array.dtype == object else _dtype(tf, array, name))

        return _mapped(batch, spec)


def _no_batch(loader: Loader, which: str = "") -> InputError:
    return InputError(
        f"there is no batch{which}",
        place=loader.dataset.source.url,
        expected=f"samples for a batch of {loader.batch_size} on each of {loader.dataset.world().world_size} ranks",
        found=f"{loader.dataset.source.units_text(loader.epoch)}, tail {loader.dataset.options.tail!r}",
        remedy="use a smaller batch size or tail='pad'",
    )


def _mapped(batch: Any, function: Callable[[Any, str], Any], name: str = "the value") -> Any:
    """Return a batch with a function applied to its leaves and their names. Lists of arrays count as tuples."""
    if isinstance(batch, dict):
        return {key: _mapped(value, function, repr(key)) for key, value in batch.items()}
    is_list = isinstance(batch, list) and any(as_array(value) is not None for value in batch)
    if isinstance(batch, tuple) or is_list:
        return tuple(_mapped(value, function, f"element {i}") for i, value in enumerate(batch))
    return function(batch, name)


def _value(value: Any, name: str) -> Any:
    """Return a leaf as an array: of numbers, or of bytes and text.

    Raises:
        InputError: It is neither.
    """
    array = as_array(value)
    if array is not None:
        return array
    if isinstance(value, (bool, int, float)):
        return np.asarray(value)
    kinds = set(map(type, value)) if isinstance(value, list) else {type(value)}
    if not kinds <= {bytes, str} or not isinstance(value, list):
        raise InputError(
            f"cannot convert {name} to a tensor",
            expected="numbers, arrays, bytes or text",
            found=", ".join(sorted(kind.__name__ for kind in kinds)),
            remedy="decode it, or leave it out with to_tuple",
        )
    array = np.empty(len(value), object)
    array[:] = value
    return array


def _dtype(tf: Any, array: Any, name: str) -> Any:
    try:
        return tf.as_dtype(array.dtype)
    except TypeError as error:
        raise InputError(
            f"cannot convert {name} to a tensor",
            expected="a dtype that TensorFlow has",
            found=str(array.dtype),
            remedy="convert it in a map",
        ) from error
