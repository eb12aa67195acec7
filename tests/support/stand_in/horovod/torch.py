"""The part of Horovod's documented interface that the example uses, over torch.distributed.

Where Horovod would wait for ever, for collectives that have another name on each rank, it fails. A step of the
optimizer before all backward passes were made is one of those that were, as there.
"""

import os

import torch
import torch.distributed as distributed

Sum = "sum"


def init():
    distributed.init_process_group("gloo")


def is_initialized():
    return distributed.is_initialized()


def shutdown():
    distributed.destroy_process_group()


def rank():
    return distributed.get_rank()


def size():
    return distributed.get_world_size()


def local_rank():
    return int(os.environ["LOCAL_RANK"])


def check_name(name):
    names = [None] * size()
    distributed.all_gather_object(names, name)
    assert len(set(names)) == 1, f"ranks wait for each other: {names}"


def allreduce(tensor, op, name):
    assert op == Sum
    check_name(name)
    total = tensor.clone()
    distributed.all_reduce(total)
    return total


def broadcast_parameters(params, root_rank):
    for name in sorted(params):
        distributed.broadcast(params[name], root_rank)


def broadcast_object(obj, root_rank=0, name=None):
    check_name(name or type(obj).__name__)
    objects = [obj]
    distributed.broadcast_object_list(objects, root_rank)
    return objects[0]


def DistributedOptimizer(optimizer, named_parameters, backward_passes_per_step=1):
    """Average gradients before each step; refuse more backward passes than were announced."""
    parameters, passes = [parameter for _, parameter in named_parameters], 0

    def count(_):
        nonlocal passes
        passes += 1
        assert passes <= backward_passes_per_step, "more backward passes than backward_passes_per_step"

    def average(*_):
        nonlocal passes
        for parameter in parameters:
            distributed.all_reduce(parameter.grad)
            parameter.grad /= size()
        passes = 0

    parameters[0].register_post_accumulate_grad_hook(count)
    optimizer.register_step_pre_hook(average)
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer
