"""Processes that `torchrun` or `accelerate launch` started, over `torch.distributed`."""

import atexit
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tiltyard._boundary import guarded
from tiltyard.errors import ConfigurationError, ProcessLostError

T = TypeVar("T")

TIMEOUT = timedelta(hours=2)
"""The longest that one process waits for another: its episodes may take long."""


class TorchProcesses:
    """The processes of the default group of `torch.distributed`; objects travel over gloo, tensors where they are."""

    def __init__(self) -> None:
        """Take the group that is there.

        Raises:
            ConfigurationError: There is none; call `join` instead.
        """
        if not dist.is_initialized():
            raise ConfigurationError("torch.distributed has no process group; start the run with torchrun")
        self.rank = dist.get_rank()
        self.count = dist.get_world_size()
        self._objects = dist.new_group(backend="gloo", timeout=TIMEOUT)

    def gather(self, item: T) -> list[T]:
        """Give an item and get those of all, in the order of the ranks.

        Raises:
            ProcessLostError: Another process is gone.
        """
        found: list[T | None] = [None] * self.count
        guarded("torch.distributed", ProcessLostError, dist.all_gather_object, found, item, group=self._objects)
        return found  # pyright: ignore[reportReturnType]  # each is one process's, and None only where that is its item

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by the sum over all processes.

        Raises:
            ProcessLostError: Another process is gone.
        """
        guarded("torch.distributed", ProcessLostError, _add, tensors)


def _add(tensors: Sequence[Tensor]) -> None:
    begun = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in begun:
        if work is not None:
            work.wait()


def join() -> TorchProcesses:
    """Join the processes that the environment variables of `torchrun` name; on CUDA each takes its own GPU.

    They are left when the interpreter ends, and before it does: a thread of gloo that still lets go of a tensor while
    Python is being taken down aborts the process. Not earlier, since a group that was left cannot be joined again.

    Raises:
        ProcessLostError: The others could not be reached.
    """
    if not dist.is_initialized():
        backend = "gloo"
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            backend = "cpu:gloo,cuda:nccl"
        guarded("torch.distributed", ProcessLostError, dist.init_process_group, backend, timeout=TIMEOUT)
        atexit.register(_leave)
    return TorchProcesses()


def _leave() -> None:
    """Wait for the threads of the group to end, where nobody else has left it."""
    if dist.is_initialized():
        dist.destroy_process_group()
