"""Counts what a forward pass keeps for its backward pass, byte by byte: memory without a clock or a process."""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class SavedBytes:
    """The bytes that autograd holds, now and at most; the given tensors (a model's parameters) do not count."""

    def __init__(self, uncounted: Iterable[Tensor] = ()) -> None:
        self.peak = 0
        self._now = 0
        self._uses: dict[int, int] = {}
        self._uncounted = {tensor.untyped_storage().data_ptr() for tensor in uncounted}

    @contextmanager
    def watch(self) -> Iterator[None]:
        """A context in which everything that is saved for a backward pass counts, until nothing needs it."""
        with torch.autograd.graph.saved_tensors_hooks(self._keep, lambda held: held.tensor):
            yield

    def _keep(self, tensor: Tensor) -> "_Held":
        held, storage = _Held(tensor), tensor.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        if place not in self._uncounted:
            self._uses[place] = self._uses.get(place, 0) + 1
            if self._uses[place] == 1:  # views of one storage are one
                self._now += size
                self.peak = max(self.peak, self._now)
            weakref.finalize(held, self._let_go, place, size)
        return held

    def _let_go(self, place: int, size: int) -> None:
        self._uses[place] -= 1
        if not self._uses[place]:
            del self._uses[place]
            self._now -= size


class _Held:
    """A saved tensor, for as long as the backward pass may need it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
