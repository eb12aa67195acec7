"""Batches on a device: each is copied there while the one before it is in use.

Copies to a CUDA device go from pinned memory, on a stream of their own. Those to any other device block: on MPS a copy
that does not block may read memory that was freed since.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import nullcontext
from operator import is_
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from wdsplit.errors import InputError, first_line
from wdsplit.loading.batches import MadeAhead
from wdsplit.loading.loader import Loader
from wdsplit.loading.stages.images import Numbers, numbers_problems, scale_and_shift
from wdsplit.order.split import Step, Steps

__all__ = ["to_device"]


def to_device(
    loader: Loader, device: str | torch.device, normalize: tuple[Sequence[float], Sequence[float]] | None = None
) -> Loader:
    """Deliver a loader's batches on a device, from the next iteration on; return the loader.

        device = "cuda" if torch.cuda.is_available() else "cpu"
        loader = wdsplit.to_device(wdsplit.Loader(dataset, 256, num_workers=2), device)
        for batch in loader: ...

    The next batch is copied while the model computes with the current one. For a CUDA device, batches are made in
    pinned memory and copied on a separate stream; the stream that is current when a batch is requested waits for its
    copy. Tensors in nested dicts, lists and tuples are copied too; other values stay as they are. States, skips,
    statistics and errors count delivered batches, not the one ahead.

    Args:
        loader: The loader. It is changed in place, as `torch.nn.Module.to` changes a module.
        device: The device for the batches. "cuda" is the CUDA device that is current when an iteration begins; "cpu"
            copies nothing ahead.
        normalize: Mean and standard deviation of red, green and blue, in [0, 1]: batches of images, uint8 of shape
            (..., 3, height, width), are divided by 255 and normalised on the device, to float32. So a quarter of the
            bytes is copied.

    Raises:
        InputError: It is not a `wdsplit.Loader`, its batches are numpy arrays, torch does not have this device, or the
            numbers are invalid.
    """
    if not isinstance(loader, Loader):
        raise InputError("cannot copy batches", expected="a wdsplit.Loader", found=type(loader).__name__)
    try:
        target = torch.device(device)
        torch.empty(0, device=target)
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        raise InputError(
            f"invalid device {str(device)!r}",
            expected="a device that torch can use here, such as 'cpu', 'cuda' or 'cuda:1'",
            found=first_line(error),
        ) from error
    change = _unchanged
    if normalize is not None:
        pair = normalize if isinstance(normalize, tuple) and len(normalize) == 2 else (normalize, ())
        if problems := numbers_problems(*pair):
            raise InputError("invalid normalize", expected="(mean, std)", found="; ".join(problems))
        change = functools.partial(_normalised, tuple(map(float, pair[0])), tuple(map(float, pair[1])))
    if target.type == "cpu" and normalize is None:
        loader.make_ahead = None
        return loader
    if loader.collate_fn is None and loader.output == "numpy":
        raise InputError(
            "numpy arrays cannot be copied to a device, or normalised there",
            expected="a loader of tensors",
            found="output='numpy'",
            remedy="wdsplit.Loader(..., output='torch')",
        )
    loader.pin_memory |= target.type == "cuda"
    loader.make_ahead = functools.partial(_ahead_on, target, change)
    return loader


def _ahead_on(device: torch.device, change: Callable[[torch.Tensor], torch.Tensor], steps: Steps) -> MadeAhead:
    """Return what copies one batch ahead to a device; or, on the CPU, changes a batch when it is requested."""
    if device.type == "cpu":
        return MadeAhead(0, lambda step, batch: _mapped(change, batch))
    stream = _Stream(device, change)
    return MadeAhead(1, stream.copied, stream.wait_for)


def _normalised(mean: Numbers, std: Numbers, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of images normalised, where it is; any other as it is."""
    if tensor.dtype != torch.uint8 or tensor.dim() < 3 or tensor.shape[-3] != 3:
        return tensor
    scale, shift = _scale_on(mean, std, tensor.device)
    return tensor.to(torch.float32).mul_(scale).add_(shift)


@functools.cache
def _scale_on(mean: Numbers, std: Numbers, device: torch.device) -> list[torch.Tensor]:
    return [torch.from_numpy(numbers).to(device) for numbers in scale_and_shift(mean, std)]


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class _Stream:
    """Copies batches to a device; to a CUDA device on a stream of their own."""

    def __init__(self, device: torch.device, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._device, self._change = device, change
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = _stream_to(torch.cuda.current_device() if device.index is None else device.index)

    def copied(self, step: Step, batch: Any) -> Any:
        """Begin to copy a batch, and return the copy."""
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            return _mapped(lambda tensor: self._change(self._copied(tensor)), batch)

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._stream is None:
            return tensor.to(self._device)
        if tensor.device.type == "cpu" and not tensor.is_pinned():  # of a collate_fn
            tensor = tensor.pin_memory()
        return tensor.to(self._stream.device, non_blocking=True)

    def wait_for(self, batch: Any) -> None:
        """Let the current stream wait for a copy, and keep its memory until the stream has used it."""
        if self._stream is not None:
            current = torch.cuda.current_stream(self._stream.device)
            current.wait_stream(self._stream)
            _mapped(functools.partial(_record, current), batch)


@functools.cache
def _stream_to(device: int) -> torch.cuda.Stream:
    """Return the stream of copies to a CUDA device: one for all iterations, because torch caches memory per stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _record(stream: torch.cuda.Stream, tensor: torch.Tensor) -> torch.Tensor:
    tensor.record_stream(stream)
    return tensor


def _mapped(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Return a batch with each of its tensors changed; a value without tensors stays the same object."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, MutableMapping):
        changed = copy.copy(value)
        for name in value:
            changed[name] = _mapped(change, value[name])
        return changed
    if isinstance(value, PackedSequence):  # its batch_sizes stay on the CPU
        rest = [None if tensor is None else change(tensor) for tensor in value[2:]]
        return PackedSequence(change(value.data), value.batch_sizes, *rest)
    if not isinstance(value, (list, tuple)):
        return value
    items = [_mapped(change, item) for item in value]
    if all(map(is_, items, value)):
        return value
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
