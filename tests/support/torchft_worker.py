"""Trains as one replica group of torchft, of one process, and writes which samples each committed step had.

Arguments: dataset, number of the replica, address of the lighthouse, and a file that replica 2 makes when it is about
to join; the others wait for it after some steps. Replica 1 kills itself in the middle of a step of three replicas.
Prints a line for each committed step, which has its number, the rank, the number of ranks and the keys, and at the end
a hash of the model.
"""

import datetime
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo

import wdsplit
from wdsplit.debug import param_hash

GLOBAL_BATCH, JOINED_AT, KILLED_AT = 12, 4, 8


def main(path, replica, lighthouse, joining):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ranks = batches = None
    dataset = wdsplit.Dataset(path, rank=0, world_size=1).decode().to_tuple("__key__", "cls")
    loader = wdsplit.Loader(dataset, GLOBAL_BATCH)
    state, num_steps = loader.state_dict(), len(loader)

    def state_dict():
        return {"model": model.state_dict(), "loader": state}

    def load_state_dict(given):
        nonlocal state, ranks
        model.load_state_dict(given["model"])
        state, ranks = given["loader"], None

    manager = Manager(
        ProcessGroupGloo(timeout=datetime.timedelta(seconds=5)),
        load_state_dict,
        state_dict,
        min_replica_size=2,
        use_async_quorum=False,
        timeout=datetime.timedelta(seconds=10),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica_{replica}",
    )
    if replica == "2":
        Path(joining).touch()
    while manager.current_step() < num_steps:
        while manager.current_step() == JOINED_AT and not Path(joining).exists():
            time.sleep(0.05)
        manager.start_quorum()
        rank, size, step = manager.participating_rank(), manager.num_participants(), manager.current_step()
        if ranks != (rank, size):
            loader, ranks = loader.reshape(rank, size, state), (rank, size)
            batches = iter(loader)
        keys, labels = next(batches)
        loss = (model(labels[:, None] / 100) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if replica == "1" and size == 3 and step >= KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        for parameter in model.parameters():
            manager.allreduce(parameter.grad).wait()
        if manager.should_commit():
            optimizer.step()
            state = loader.state_dict()
            print(json.dumps([step, rank, size, list(keys)]), flush=True)
        else:
            ranks = None  # the samples come again
    print(json.dumps([param_hash(model)]), flush=True)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
