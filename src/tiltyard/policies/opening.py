"""Brings sequences into one batch that is ready to sample, reusing whatever was computed before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tiltyard.policies.base import TokenRequest
from tiltyard.policies.cache import Kept, Row, Shelf, Slab, gather
from tiltyard.policies.decoding import CausalModel, prefill
from tiltyard.types import FinishReason

_WASTE = 64
"""Padded tokens from which a second pass over the shorter sequences costs less than their padding."""

_WORTH_SHARING = 32
"""Tokens that a shared beginning must save to be worth a pass of its own."""


@dataclass(slots=True)
class SamplerStats:
    """What the sampler did since it was made, in tokens unless it says otherwise.

    Attributes:
        sampled: Drawn.
        prefilled: Fed before a turn's first draw, padding not counted.
        reused: Not fed, because the episode's earlier turns had left their keys and values.
        shared: Not fed, because another sequence began with the same tokens.
        extended: Requests that extended what was kept for their episode.
        forks: Requests whose ids did not extend what was kept; the part before the difference is reused.
        steps: Passes of one token a row.
    """

    sampled: int = 0
    prefilled: int = 0
    reused: int = 0
    shared: int = 0
    extended: int = 0
    forks: int = 0
    steps: int = 0


@dataclass(slots=True)
class Job:
    """One request while it is being sampled.

    Attributes:
        request: What was asked.
        ids: Its ids as a list.
        budget: The most tokens that may be drawn.
        cut: The reason to give when the budget is used up.
        draws: One number in [0, 1) for each token of the budget.
        row: Where keys and values of the first ids are; None when there are none.
        sampled: The ids drawn so far.
        logprobs: One for each of them.
        reason: Why the turn ended; None while it goes on.
    """

    request: TokenRequest
    ids: list[int]
    budget: int
    cut: FinishReason
    draws: np.ndarray
    row: Row | None = None
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: FinishReason | None = None

    @property
    def pending(self) -> list[int]:
        """The ids still to be fed before the last one, which is fed by the first step."""
        return self.ids[len(self.row) if self.row else 0 : -1]

    def take(self, token: int, logprob: float, stop_ids: frozenset[int]) -> bool:
        """Add one drawn token; returns whether the turn is over."""
        self.sampled.append(token)
        self.logprobs.append(logprob)
        if token in stop_ids:
            self.reason = "stop"
        elif len(self.sampled) >= self.budget:
            self.reason = self.cut
        return self.reason is not None


class Opener:
    """Opens batches over one model, and remembers the beginning that prompts share."""

    def __init__(self, model: CausalModel, shelf: Shelf, stats: SamplerStats, max_tokens: int) -> None:
        self.model, self.shelf, self.stats, self.max_tokens = model, shelf, stats, max_tokens
        self._prefix: Kept | None = None

    def forget(self) -> None:
        """Drop the shared beginning, whose keys and values come from older weights."""
        self._prefix = None

    def open(self, jobs: Sequence[Job]) -> Slab:
        """A slab with one row for each job, all ids but the last fed, and room for every budget."""
        known, new = [], []
        for job in jobs:
            (known if self._recall(job) else new).append(job)
        room = max(job.budget for job in jobs)
        self._fill(known, room)
        self._fill_new(new, room)
        rows = [job.row for job in jobs]
        slab = rows[0].slab if rows[0] else None
        if slab and slab.capacity - slab.filled >= room and slab.holds(rows):
            return slab
        return gather(rows, room, self.model.layers, self.model.device)

    def _recall(self, job: Job) -> bool:
        """Find what is kept for the job's episode; returns whether any of it is of use."""
        kept = self.shelf.take(job.request.key)
        if kept is None:
            return False
        common = _common(kept.ids, job.ids[:-1])
        if common == len(kept.ids):
            self.stats.extended += 1
        else:
            self.stats.forks += 1
        if common:
            job.row = kept.row.head(common)
            self.stats.reused += common
        return common > 0

    def _fill_new(self, jobs: Sequence[Job], room: int) -> None:
        """Feed new prompts, each different one once and what all of them begin with once."""
        groups: dict[tuple[int, ...], list[Job]] = {}
        for job in jobs:
            groups.setdefault(tuple(job.ids[:-1]), []).append(job)
        leaders = [members[0] for members in groups.values()]
        self._share_prefix(leaders)
        self._fill(leaders, room)
        for leader, *others in groups.values():
            for job in others:
                job.row = leader.row
                self.stats.shared += len(job.row) if job.row else 0

    def _share_prefix(self, leaders: Sequence[Job]) -> None:
        heads = [job.ids[:-1] for job in leaders]
        if not heads:
            return
        first, last = min(heads), max(heads)
        shared = _common(first, last)
        known = _common(self._prefix.ids, first[:shared]) if self._prefix else 0
        if (shared - known) * (len(heads) - 1) >= _WORTH_SHARING:
            row = self._prefix.row.head(known) if self._prefix and known else None
            slab = prefill(self.model, [row], [first[known:shared]], 0, self.max_tokens)
            self._prefix = Kept(first[:shared], slab.row(0))
            self.stats.prefilled += shared - known
        if self._prefix is None:
            return
        for job, head in zip(leaders, heads, strict=True):
            common = _common(self._prefix.ids, head)
            if common:
                job.row = self._prefix.row.head(common)
                self.stats.shared += common

    def _fill(self, jobs: Sequence[Job], room: int) -> None:
        """Feed all ids but the last, in batches of similar length."""
        waiting = [job for job in jobs if job.pending]
        for batch in _similar(waiting):
            pending = [job.pending for job in batch]
            slab = prefill(self.model, [job.row for job in batch], pending, room, self.max_tokens)
            for index, job in enumerate(batch):
                job.row = slab.row(index)
            self.stats.prefilled += sum(map(len, pending))


def _similar(jobs: Sequence[Job]) -> list[list[Job]]:
    """Split by how much is pending, where padding would cost more than another pass; else keep the order."""
    lengths = sorted((len(job.pending) for job in jobs), reverse=True)
    bounds: list[int] = []
    waste = 0
    for length in lengths:
        waste += bounds[-1] - length if bounds else 0
        if not bounds or waste > max(_WASTE, bounds[-1]):
            bounds.append(length)
            waste = 0
    batches: list[list[Job]] = [[] for _ in bounds]
    for job in jobs:
        batches[max(i for i, bound in enumerate(bounds) if len(job.pending) <= bound)].append(job)
    return [batch for batch in batches if batch]


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids two sequences have in common from the start."""
    shortest = min(len(first), len(second))
    if first[:shortest] == second[:shortest]:
        return shortest
    return next(i for i in range(shortest) if first[i] != second[i])
