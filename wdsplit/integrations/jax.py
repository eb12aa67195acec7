"""JAX: batches as global arrays over the devices of a mesh, copied there before they are used.

Adapter over `wdsplit.Loader`; torch need not be installed. Each process reads the rows of its own devices. Processes
whose devices have the same rows (along a model axis, for example) read the same samples. Each process computes its rows
from the sharding, and the pads from the order, without communication.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from wdsplit.errors import InputError, MissingDependencyError, TopologyError
from wdsplit.integers import whole
from wdsplit.integrations.opaque_loader import OpaqueLoader, refuse_bundles
from wdsplit.loading.batches import MadeAhead
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.order.split import Step, Steps, World

try:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise MissingDependencyError.for_extra("jax") from error

__all__ = ["Batch", "JaxLoader"]

logger = logging.getLogger(__name__)


class Batch(NamedTuple):
    """A global batch.

    Attributes:
        data: The numbers and arrays of the samples: a dict, a tuple or one array, as the samples are; jax.Array of
            shape (global batch, ...), split over the data axis. None if there are none.
        valid: bool of shape (global batch,), split alike: False where a row only fills up the batch.
        host: All other values (text, bytes, ...): a dict, a tuple or one list, of this process's rows only, in their
            order; of packs also the numbers of each sample, as numpy arrays. None if there are none.
    """

    data: Any
    valid: jax.Array
    host: Any

    @property
    def masks(self) -> Any:
        """`valid` for each leaf of `data`: bool of shape (global batch, 1, ...), of as many dimensions as the leaf."""
        return jax.tree.map(lambda leaf: self.valid.reshape(-1, *[1] * (leaf.ndim - 1)), self.data)


class JaxLoader(OpaqueLoader):
    """Global batches of a `Dataset` over the devices of a mesh.

    All batches have one shape, the last one too. The samples of step t are those of `wdsplit.Loader` for the same
    global batch size, whatever the mesh; the rows are ordered process by process. Each full pass moves on to the next
    epoch.

    Dtypes follow JAX's own rule: while `jax_enable_x64` is off, 64-bit values become 32-bit ones. That is logged once
    for each field of floats, and integers that would not fit are an error.

    Args:
        dataset: The dataset, with stages that return one sample for each input. Its ranks follow from the mesh.
        batch_size: Samples per place of the data axis: per device, unless several have the same rows.
        mesh: The devices; None for all that JAX has, as one data axis.
        data_axis: The axis, or axes, of the mesh over which batches are split; they are repeated along all others.
        specs: How some fields are split otherwise, by name (or place in the tuple): a PartitionSpec that splits the
            batch over `data_axis` and further dimensions over other axes, {"image": PartitionSpec("data", "model")}.
        prefetch: Batches to copy to the devices ahead of the requested one.
        num_workers: Workers of this process; 0 reads in this thread.
        workers: Kind of workers: `thread`, or `process` (needs torch; JAX must not be forked, so pass
            multiprocessing_context="forkserver" or "spawn").
        options: Other options of `wdsplit.Loader`: `prefetch_factor`, `prefetch_bytes`, `persistent_workers`,
            `multiprocessing_context`, and `pad_to`, without which packs are refused.

    Raises:
        InputError: An argument is invalid.
        TopologyError: This process has no device in the mesh, or the dataset was opened for other ranks.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        *,
        mesh: Mesh | None = None,
        data_axis: str | Sequence[str] = "data",
        specs: Mapping[Any, PartitionSpec] | None = None,
        prefetch: int = 2,
        num_workers: int = 0,
        workers: Literal["process", "thread"] = "thread",
        **options: Any,
    ) -> None:
        axes = (data_axis,) if isinstance(data_axis, str) else tuple(data_axis)
        if mesh is None:
            mesh = Mesh(np.array(jax.devices()).reshape(-1, *[1] * (len(axes) - 1)), axes)
        batch_size, prefetch = whole(batch_size), whole(prefetch)
        _check(dataset, batch_size, mesh, axes, prefetch, options)
        num_shards = math.prod(mesh.shape[axis] for axis in axes)
        self.mesh = mesh
        self.sharding = NamedSharding(mesh, PartitionSpec(axes if len(axes) > 1 else axes[0]))
        for name, spec in (specs or {}).items():
            if not isinstance(spec, PartitionSpec) or not spec or spec[0] != self.sharding.spec[0]:
                expected = f"a PartitionSpec that begins with the data axis, {self.sharding.spec[0]!r}"
                raise InputError("invalid specs of a JaxLoader", f"field {name!r}", expected, repr(spec))
        self._shardings = {name: NamedSharding(mesh, spec) for name, spec in (specs or {}).items()}
        self.global_batch = batch_size * num_shards
        self._world = world_of(self.sharding, num_shards)
        if dataset.options.tail == "uneven" and self._world.world_size > 1:
            raise InputError(
                "tail='uneven' does not work with several processes",
                expected="the same number of batches on each, because all take part in every batch",
                remedy="use tail='pad': `valid` flags the pads, so that an evaluation is exact",
            )
        if options.get("pad_to") is None:
            refuse_bundles(dataset, "a JaxLoader without pad_to='capacity'")
        loader = Loader(
            dataset.at_rank(self._world.rank, self._world.world_size),
            self.global_batch // self._world.world_size,
            num_workers=num_workers,
            workers=workers,
            output="numpy",
            **options,
        )
        super().__init__(loader)
        self._prefetch = prefetch
        self._logged: set[str] = set()
        loader.make_ahead = self._make_ahead

    def _make_ahead(self, steps: Steps) -> MadeAhead:
        """Return what copies the batches of some steps to the devices."""

        def put(step: Step, batch: Any) -> Batch:
            return self._put(batch, steps.order.is_real(step.positions))

        return MadeAhead(self._prefetch, put)

    def __repr__(self) -> str:
        return f"JaxLoader({self.loader.dataset!r}, global_batch={self.global_batch}, mesh={dict(self.mesh.shape)})"

    def _put(self, batch: Any, is_real: npt.NDArray[np.bool_]) -> Batch:
        """Fill up this process's rows of a batch, and start to copy it to the devices."""
        missing = self.loader.batch_size - len(is_real)
        valid = np.concatenate([is_real, np.zeros(missing, np.bool_)])
        columns = batch if isinstance(batch, dict) else dict(enumerate(batch if isinstance(batch, tuple) else [batch]))
        is_packed = self.loader.pad_to is not None  # then only what is joined to rows has more than one dimension
        host = {
            name: values
            for name, values in columns.items()
            if isinstance(values, list) or (is_packed and values.ndim == 1)
        }
        data = {name: values for name, values in columns.items() if name not in host}
        unknown = self._shardings.keys() - data.keys()
        if unknown:
            raise InputError("invalid specs of a JaxLoader", found=f"no such array: {sorted(map(repr, unknown))}")
        if missing:  # the last row is repeated
            data = {name: np.concatenate([each, np.repeat(each[-1:], missing, axis=0)]) for name, each in data.items()}
        arrays = {name: self._array(name, values) for name, values in data.items()}
        texts = host if is_packed else {name: values + [None] * missing for name, values in host.items()}
        return Batch(_like_batch(batch, arrays), self._global(valid), _like_batch(batch, texts))

    def _array(self, name: Any, values: npt.NDArray[Any]) -> jax.Array:
        """Put one field on the devices, as a dtype that JAX has.

        Raises:
            InputError: Integers do not fit into the dtype.
        """
        dtype = np.dtype(jax.dtypes.canonicalize_dtype(values.dtype))
        if dtype == values.dtype:
            return self._global(values, name)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            if values.size and not (limits.min <= values.min() and values.max() <= limits.max):
                raise InputError(
                    f"{name!r} has integers that do not fit into {dtype}, which JAX makes of {values.dtype}",
                    expected=f"{limits.min} to {limits.max}",
                    found=f"{values.min()} to {values.max()}",
                    remedy="call jax.config.update('jax_enable_x64', True), or leave the field out with to_tuple",
                )
        elif name not in self._logged:
            self._logged.add(name)
            logger.info("%r: %s becomes %s, because jax_enable_x64 is off", name, values.dtype, dtype)
        return self._global(values.astype(dtype), name)

    def _global(self, values: npt.NDArray[Any], name: Any = None) -> jax.Array:
        """Return this process's rows of a field as a part of an array over all devices of the mesh."""
        sharding = self._shardings.get(name, self.sharding)
        if sharding.is_fully_addressable:
            return jax.device_put(values, sharding)
        shape = (self.global_batch, *values.shape[1:])
        return jax.make_array_from_process_local_data(sharding, values, shape)


def world_of(sharding: NamedSharding, num_shards: int) -> World:
    """Return this process's rank among those whose devices have different rows of a batch.

    Args:
        sharding: How batches are split.
        num_shards: Number of shards of a batch.

    Raises:
        TopologyError: This process has no device in the mesh, or processes share only some of their rows.
    """
    rows_of: dict[int, set[int]] = {}
    for device, index in sharding.devices_indices_map((num_shards,)).items():
        rows_of.setdefault(device.process_index, set()).add(index[0].start or 0)
    own = rows_of.get(jax.process_index())
    if own is None:
        raise TopologyError(
            "this process has no device in the mesh",
            expected=f"process {jax.process_index()} among {sorted(rows_of)}",
            remedy="make the mesh of the devices of all processes that iterate the loader",
        )
    ranks = sorted({tuple(sorted(rows)) for rows in rows_of.values()})
    if sum(map(len, ranks)) != num_shards or len(set(map(len, ranks))) > 1:
        raise TopologyError(
            "processes of the mesh share only some of their rows",
            expected="two processes have either the same rows of a batch or none in common, and all have equally many",
            found="; ".join(f"process {process}: shards {sorted(rows)}" for process, rows in sorted(rows_of.items())),
            remedy="order the devices so that those of one process lie side by side (jax.make_mesh does)",
        )
    return World(ranks.index(tuple(sorted(own))), len(ranks))


def _check(
    dataset: Any, batch_size: Any, mesh: Mesh, axes: tuple[str, ...], prefetch: Any, options: Mapping[str, Any]
) -> None:
    problems = []
    if not isinstance(dataset, Dataset):
        problems.append(f"dataset is a {type(dataset).__name__}: expected a wdsplit.Dataset")
    for name, value, low in (("batch_size", batch_size, 1), ("prefetch", prefetch, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            problems.append(f"{name} = {value!r}: expected an integer of at least {low}")
    unknown = [axis for axis in axes if axis not in mesh.shape]
    if unknown or not axes:
        problems.append(f"data_axis = {axes}: expected axes of the mesh, {tuple(mesh.shape)}")
    known = {"multiprocessing_context", "pad_to", "persistent_workers", "prefetch_bytes", "prefetch_factor"}
    problems += [f"{name}: no option of a JaxLoader" for name in options if name not in known]
    if problems:
        raise InputError("invalid JaxLoader arguments", found="; ".join(problems))


def _like_batch(batch: Any, columns: dict[Any, Any]) -> Any:
    """Return columns in the form of the batch: a dict, a tuple or one column; None if there are none."""
    if not columns:
        return None
    if isinstance(batch, dict):
        return columns
    return tuple(columns.values()) if isinstance(batch, tuple) else columns[0]
