"""Rows laid out for one forward pass: as a tree in which every shared prefix stands once, or padded side by side.

A tree is written as one sequence. Each token is a node; it may look at itself and at its ancestors only (a 4-D
attention mask), and its position is its depth. A prompt that a group shares is then computed once, and so is whatever
else two members have in common from the start.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from tiltyard.train.batch import TrainRow

ROOT = -1


@dataclass(frozen=True, slots=True)
class Pack:
    """What one forward pass takes, and where in its output the trained tokens are found.

    Attributes:
        rows: The rows it holds, each with at least one trained token.
        ids: [B, T].
        positions: [B, T].
        attention: [B, 1, T, T] in bool for a tree, True where a token may look; [B, T] for rows side by side, and
            for a tree without branches.
        places: [U], the flat places whose next-token distribution, or value, is needed.
        source: [K], for each trained token the index into `places` of what predicts it, row after row.
        targets: [K], the trained tokens.
        row: [K], the index into `rows` of each trained token.
        turn: [K], the turn that each trained token was sampled in.
        ends: [E], for each row that was cut the index into `places` of its last token.
        end_row: [E], the index into `rows` of each of these.
        sampler: [K], the sampler's log-probability of each trained token; NaN where it gave none.
        advantages: [K].
    """

    rows: tuple[TrainRow, ...]
    ids: Tensor
    positions: Tensor
    attention: Tensor
    places: Tensor
    source: Tensor
    targets: Tensor
    row: Tensor
    turn: Tensor
    ends: Tensor
    end_row: Tensor
    sampler: Tensor
    advantages: Tensor

    def to(self, device: torch.device) -> "Pack":
        """The same pack on another device."""
        tensors = {f.name: getattr(self, f.name).to(device) for f in fields(self) if f.name != "rows"}
        return replace(self, **tensors)


def tree_packs(rows: Sequence[TrainRow], max_tokens: int) -> Iterator[Pack]:
    """Pack rows in their order, a new tree as soon as one would pass `max_tokens`; a longer row stands alone."""
    tree = _Tree()
    for row in _trained(rows):
        if tree.rows and len(tree.ids) + tree.new_nodes(row.ids) > max_tokens:
            yield tree.pack()
            tree = _Tree()
        tree.add(row)
    if tree.rows:
        yield tree.pack()


def padded_packs(rows: Sequence[TrainRow], max_tokens: int) -> Iterator[Pack]:
    """Pad rows side by side on the right, as many as keep rows times longest within `max_tokens`, at least one."""
    held: list[TrainRow] = []
    for row in _trained(rows):
        if held and max(len(row.ids), *(len(r.ids) for r in held)) * (len(held) + 1) > max_tokens:
            yield _padded(held)
            held = []
        held.append(row)
    if held:
        yield _padded(held)


def _trained(rows: Sequence[TrainRow]) -> list[TrainRow]:
    return [row for row in rows if row.trained]


@dataclass(slots=True)
class _Tree:
    """A tree under construction; nodes are numbered in the order in which they came, parents first."""

    rows: list[TrainRow] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    paths: list[list[int]] = field(default_factory=list)
    children: dict[tuple[int, int], int] = field(default_factory=dict)

    def new_nodes(self, ids: Sequence[int]) -> int:
        node = ROOT
        for depth, token in enumerate(ids):
            found = self.children.get((node, token))
            if found is None:
                return len(ids) - depth
            node = found
        return 0

    def add(self, row: TrainRow) -> None:
        node, path = ROOT, []
        for token in row.ids:
            key = (node, token)
            node = self.children.get(key, len(self.ids))
            if node == len(self.ids):
                self.children[key] = node
                self.ids.append(token)
                self.parents.append(key[0])
            path.append(node)
        self.rows.append(row)
        self.paths.append(path)

    def pack(self) -> Pack:
        depth: list[int] = []
        for parent in self.parents:
            depth.append(0 if parent == ROOT else depth[parent] + 1)
        count = len(depth)
        # Without branches every model's own causal mask will do, which costs no memory that grows with T * T.
        single = depth == list(range(count))
        return _with_targets(
            self.rows,
            self.paths,
            ids=torch.tensor([self.ids]),
            positions=torch.tensor([depth]),
            attention=torch.ones(1, count, dtype=torch.long) if single else self._attention()[None, None],
        )

    def _attention(self) -> Tensor:
        """[T, T], True where the column is the row's node or one of its ancestors."""
        count = len(self.parents)
        seen = torch.zeros(count, count, dtype=torch.bool)
        start = 0
        while start < count:
            end = start + 1
            while end < count and self.parents[end] == end - 1:
                end += 1
            if self.parents[start] != ROOT:
                seen[start:end] = seen[self.parents[start]]
            seen[start:end, start:end] = torch.ones(end - start, end - start, dtype=torch.bool).tril()
            start = end
        return seen


def _padded(rows: Sequence[TrainRow]) -> Pack:
    length = max(len(row.ids) for row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    attention = torch.zeros(len(rows), length, dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = torch.tensor(row.ids)
        attention[index, : len(row.ids)] = 1
    paths = [list(range(index * length, index * length + len(row.ids))) for index, row in enumerate(rows)]
    positions = torch.arange(length).expand(len(rows), length)
    return _with_targets(rows, paths, ids=ids, positions=positions, attention=attention)


def _with_targets(
    rows: Sequence[TrainRow], paths: Sequence[Sequence[int]], *, ids: Tensor, positions: Tensor, attention: Tensor
) -> Pack:
    """Complete a pack: the token at t is predicted from the place of the token at t - 1."""
    trained = [
        (path[t - 1], row.ids[t], index, row.turns[t] if row.turns else 0, row.logprobs[t], row.advantages[t])
        for index, (row, path) in enumerate(zip(rows, paths, strict=True))
        for t, on in enumerate(row.mask)
        if on
    ]
    before, targets, of_row, turn, logprobs, advantages = zip(*trained, strict=True)
    ends = [(path[-1], index) for index, (row, path) in enumerate(zip(rows, paths, strict=True)) if row.cut]
    places, found = torch.unique(torch.tensor([*before, *(place for place, _ in ends)]), return_inverse=True)
    return Pack(
        rows=tuple(rows),
        ids=ids,
        positions=positions,
        attention=attention,
        places=places,
        source=found[: len(before)],
        targets=torch.tensor(targets),
        row=torch.tensor(of_row),
        turn=torch.tensor(turn),
        ends=found[len(before) :],
        end_row=torch.tensor([index for _, index in ends], dtype=torch.long),
        sampler=torch.tensor([math.nan if value is None else value for value in logprobs], dtype=torch.float32),
        advantages=torch.tensor(advantages, dtype=torch.float32),
    )
