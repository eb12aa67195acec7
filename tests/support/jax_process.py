"""One process of two, with 4 devices each, under jax.distributed: prints what it was given, as JSON.

jax_process.py DATASET COORDINATOR PROCESS
"""

import itertools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, PartitionSpec

import wdsplit
from wdsplit.integrations.jax import JaxLoader

ORDERS = {
    "data": (np.arange(8), (8,)),
    "data, model within a process": (np.arange(8), (4, 2)),
    "data, model across processes": (np.arange(8).reshape(2, 4).T, (4, 2)),
    "data, interleaved": (np.arange(8).reshape(2, 4).T, (8,)),
    "in part the same rows": (np.array([0, 1, 2, 4, 5, 6, 3, 7]), (4, 2)),
}


def opened():
    return wdsplit.Dataset(sys.argv[1]).decode().to_tuple("__position__", "cls", "txt")


def main():
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(sys.argv[2], num_processes=2, process_id=int(sys.argv[3]))
    devices = np.array(sorted(jax.devices(), key=lambda device: device.id))
    found = {"world": vars(opened().world()), "steps": {}}
    for name, (order, shape) in ORDERS.items():
        mesh = Mesh(devices[order].reshape(shape), ("data", "model")[: len(shape)])
        try:
            loader = JaxLoader(opened(), 16 // shape[0], mesh=mesh)
        except wdsplit.TopologyError as error:
            found["steps"][name] = error.cause
            continue
        found["steps"][name] = [described(batch) for batch in loader]
    found["split"] = split_over_both_axes(Mesh(devices.reshape(2, 4).T, ("data", "model")))
    resumable = JaxLoader(opened(), 2)
    list(itertools.islice(resumable, 2))
    found["state"] = resumable.state_dict()
    print(json.dumps(found))


def split_over_both_axes(mesh):
    """Return the sums of a field's columns in each batch; each process has half of the columns."""
    dataset = wdsplit.Dataset(sys.argv[1]).decode().map(lambda sample: {"b": np.arange(2) * 100 + sample["cls"]})
    loader = JaxLoader(dataset, 4, mesh=mesh, specs={"b": PartitionSpec("data", "model")})
    add = jax.jit(lambda rows, valid: jnp.sum(jnp.where(valid, rows, 0), 0))
    sums = []
    for batch in loader:
        assert [shard.data.shape for shard in batch.data["b"].addressable_shards] == [(4, 1)] * 4
        sums.append(add(batch.data["b"], batch.masks["b"]))
    return [multihost_utils.process_allgather(each, tiled=True).tolist() for each in sums]


def described(batch):
    """Return of a batch: the numbers of its valid rows by all processes' view, their sum by a collective, and ours."""
    _, rows = (multihost_utils.process_allgather(column, tiled=True) for column in batch.data)
    valid = multihost_utils.process_allgather(batch.valid, tiled=True)
    total = jax.jit(lambda rows, valid: jnp.sum(jnp.where(valid, rows, 0)))(batch.data[1], batch.valid)
    held = sorted({shard.index[0].start: shard.data for shard in batch.data[1].addressable_shards}.items())
    own = np.concatenate([np.asarray(data) for _, data in held])
    assert batch.host == ([f"row {row}" for row in own],)
    return {"rows": rows[valid].tolist(), "sum": int(total), "own": own.tolist()}


if __name__ == "__main__":
    main()
