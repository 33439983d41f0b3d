"""Keys and values of many sequences, kept across turns without copying them at every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class _GrowingLayer(DynamicLayer):
    """One layer's keys and values in buffers with room to grow, a token's heads side by side.

    transformers' own layer concatenates, which copies the whole cache at every token.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        super().__init__()
        self.rows, self.capacity, self.filled = rows, capacity, 0
        self.buffers: list[torch.Tensor] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.buffers:
            self.buffers = [
                states.new_zeros(self.rows, self.capacity, states.shape[1], states.shape[3])
                for states in (key_states, value_states)
            ]
        self.is_initialized = True
        rows, start = key_states.shape[0], self.filled
        self.filled += key_states.shape[2]
        seen = []
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:rows, start : self.filled] = states.transpose(1, 2)
            seen.append(buffer[:rows, : self.filled].transpose(1, 2))
        return seen[0], seen[1]

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return self.filled


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Where the keys and values of one sequence are: a row of a slab, and its columns in token order."""

    slab: Slab
    row: int
    columns: torch.Tensor

    def __len__(self) -> int:
        return len(self.columns)

    def head(self, count: int) -> Row:
        """The same row, its first `count` tokens only."""
        return Row(self.slab, self.row, self.columns[:count])


class Slab:
    """The keys and values of a batch, in columns that all rows share.

    A column may be a gap in some rows; `valid` says where it is not. The rows in use are the first
    ones: a row that is finished is swapped behind them, so that the rest stays one view.
    """

    def __init__(self, layers: int, rows: int, capacity: int, device: torch.device) -> None:
        """Make an empty batch; its buffers are made with the first tokens, in their shape and dtype."""
        self.rows, self.capacity = rows, capacity
        self.valid = torch.zeros(rows, capacity, dtype=torch.bool, device=device)
        self.layers = [_GrowingLayer(rows, capacity) for _ in range(layers)]
        self.cache = DynamicCache()
        self.cache.layers[:] = self.layers

    @property
    def filled(self) -> int:
        """How many columns are in use."""
        return self.layers[0].filled

    @property
    def bytes(self) -> int:
        """The memory of its buffers."""
        return sum(buffer.nbytes for layer in self.layers for buffer in layer.buffers)

    def mark(self, block: torch.Tensor) -> torch.Tensor:
        """Say which of the tokens about to be fed [rows, T] are real; returns the mask of all columns."""
        rows, width = block.shape
        end = self.filled + width
        self.valid[:rows, self.filled : end] = block
        return self.valid[:rows, :end]

    def swap(self, first: int, second: int) -> None:
        """Exchange two rows."""
        if first == second:
            return
        pair, exchanged = [first, second], [second, first]
        self.valid[pair] = self.valid[exchanged]
        for layer in self.layers:
            for buffer in layer.buffers:
                used = buffer[:, : layer.filled]
                held = used[first].clone()
                used[first] = used[second]
                used[second] = held

    def holds(self, rows: Sequence[Row | None]) -> bool:
        """Whether these are its rows: all of them, in their order, and each of them whole."""
        return (
            len(rows) == self.rows
            and all(row and row.slab is self and row.row == index for index, row in enumerate(rows))
            and [len(row) for row in rows if row] == self.valid.sum(dim=1).tolist()
        )

    def row(self, row: int) -> Row:
        """Where the tokens of one row are now."""
        return Row(self, row, self.valid[row].nonzero().squeeze(1))


def gather(rows: Sequence[Row | None], extra: int, layers: int, device: torch.device) -> Slab:
    """Copy sequences into one new batch, without gaps at their end and with room for `extra` tokens.

    None is a sequence of which nothing is kept. A row may be given several times.
    """
    width = max((len(row) for row in rows if row is not None), default=0)
    made = Slab(layers, len(rows), width + extra, device)
    sources: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        if row is not None and len(row):
            sources.setdefault(id(row.slab), []).append(index)
            made.valid[index, width - len(row) : width] = True
    for members in sources.values():
        _copy(made, members, [rows[index] for index in members], width, whole=len(members) == len(rows))
    for layer in made.layers:
        layer.filled = width
    return made


def _copy(made: Slab, members: list[int], rows: Sequence[Row | None], width: int, *, whole: bool) -> None:
    """Copy the rows `members` of one slab; `whole` says that they are all the rows of the new one."""
    taken = [row for row in rows if row is not None]
    source = taken[0].slab
    # Columns that hold nothing get some real token: masked, but never NaN.
    index = torch.empty(len(taken), made.capacity, dtype=torch.long, device=made.valid.device)
    for target, row in zip(index, taken, strict=True):
        start = row.row * source.capacity
        target[:] = start + row.columns[0]
        target[width - len(row) : width] = start + row.columns
    for layer, old in zip(made.layers, source.layers, strict=True):
        layer.is_initialized = True
        # A model that is spread over devices keeps each layer's cache where the layer is.
        copies = [
            buffer.flatten(0, 1).index_select(0, index.view(-1).to(buffer.device)).view(*index.shape, *buffer.shape[2:])
            for buffer in old.buffers
        ]
        if whole:
            layer.buffers = copies
            continue
        if not layer.buffers:
            layer.buffers = [copy.new_zeros(made.rows, *copy.shape[1:]) for copy in copies]
        for buffer, copy in zip(layer.buffers, copies, strict=True):
            buffer[members] = copy


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of one episode: the ids whose keys and values are at `row`, one column for each."""

    ids: list[int]
    row: Row


class Shelf:
    """The caches kept between calls, by episode, within a bound on their memory."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._kept: dict[str, Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def bytes(self) -> int:
        """The memory of everything kept; a slab counts whole while one of its rows is kept."""
        return sum(slab.bytes for slab in {id(kept.row.slab): kept.row.slab for kept in self._kept.values()}.values())

    def take(self, key: str) -> Kept | None:
        """What is kept for an episode, which the shelf then no longer has."""
        return self._kept.pop(key, None)

    def put(self, key: str, kept: Kept) -> None:
        """Keep an episode's cache; it counts as the one used last."""
        self._kept.pop(key, None)
        self._kept[key] = kept

    def release(self, keys: Sequence[str]) -> None:
        """Forget these episodes; unknown keys are ignored."""
        for key in keys:
            self._kept.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()

    def tidy(self) -> None:
        """Drop the oldest episodes until the bound holds, and copy the rest out of slabs mostly unused."""
        self._thin()
        while self._kept and self.bytes > self.max_bytes:
            del self._kept[next(iter(self._kept))]
            self._thin()

    def _thin(self) -> None:
        by_slab: dict[int, list[str]] = {}
        for key, kept in self._kept.items():
            by_slab.setdefault(id(kept.row.slab), []).append(key)
        for keys in by_slab.values():
            slab = self._kept[keys[0]].row.slab
            if len(keys) * 2 >= slab.rows:
                continue
            made = gather([self._kept[key].row for key in keys], 0, len(slab.layers), slab.valid.device)
            for index, key in enumerate(keys):
                self._kept[key] = Kept(self._kept[key].ids, made.row(index))
