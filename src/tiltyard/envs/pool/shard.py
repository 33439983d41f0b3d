"""The slots that one worker owns: which of them need a reset, what is asked of them, and what comes back."""

import pickle
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tiltyard.envs.pool.faults import sendable, unpacked
from tiltyard.envs.pool.recipe import EnvRecipe
from tiltyard.envs.pool.seat import Seat, Source
from tiltyard.envs.pool.slot import Facts
from tiltyard.envs.pool.slot_host import Call, SlotHostMaker
from tiltyard.envs.pool.workers import Asked, Worker
from tiltyard.errors import EnvError, EnvTimeoutError, ResetNeededError, TiltyardError, WorkerLostError

ANSWER_TIMEOUT_S = 0.5
"""How long a worker that passed a deadline may take to say what it has; after that it hangs as a whole."""

NOBODY = -1
"""The generation of a slot whose episode nobody may go on with."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker of a pool, as it stands.

    Attributes:
        number: Its place in the pool.
        slots: The slots that it owns.
        generation: How often it was replaced.
        pid: Its process; None while it is being replaced.
        node: Its machine in the cluster; None where there is no cluster.
    """

    number: int
    slots: range
    generation: int
    pid: int | None
    node: str | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls that were given to a worker.

    Attributes:
        calls: All of them.
        results: By position, those that are known already: the calls that were not sent.
        sent: The positions of the others.
        begins: Whether they begin episodes.
        worker: Who was asked.
        asked: What was asked.
        end: When `time.monotonic` passes it, what is missing has hung; None sets no bound.
    """

    calls: Sequence[Call]
    results: dict[int, Any]
    sent: Sequence[int]
    begins: bool
    worker: Worker | None = None
    asked: Asked | None = None
    end: float | None = None


class Shard:
    """One worker's slots.

    Attributes:
        facts: What there is to know of each slot's environment.
    """

    def __init__(self, number: int, slots: range, recipe: EnvRecipe, source: Source) -> None:
        """Set them up; nothing is started.

        Raises:
            ConfigurationError: The recipe cannot be sent to a worker.
        """
        self.number = number
        self.slots = slots
        self.facts: dict[int, Facts] = {}
        host = source.backend.pickled(SlotHostMaker(recipe, tuple(slots)), "the environment")
        # One thread for each slot, and one that is free to close them.
        self.seat = Seat(number, host, len(slots) + 1, source, self._welcome)
        # The generation of the worker that reset each slot last; a step needs that of today.
        self._reset_by: dict[int, int] = dict.fromkeys(slots, 0)

    @property
    def info(self) -> WorkerInfo:
        """The worker as it stands."""
        with self.seat.lock:
            worker, generation = self.seat.worker, self.seat.generation
        pid, node = (None, None) if worker is None else (worker.pid, worker.node)
        return WorkerInfo(self.number, self.slots, generation, pid, node)

    def forget(self, slots: Iterable[int]) -> None:
        """Whatever these slots play is over: they take no step before the next reset."""
        with self.seat.lock:
            for slot in slots:
                self._reset_by[slot] = NOBODY

    def ask(self, calls: Sequence[Call], request: bytes, *, begins: bool, timeout_s: float | None) -> Batch:
        """Give calls to the worker, and do not wait for what comes of them.

        Args:
            calls: The calls, at most one for each slot.
            request: The same, pickled.
            begins: Whether they begin episodes; then a worker that is being replaced is waited for.
            timeout_s: How long the calls may take, from when there is a worker to run them.
        """
        try:
            return self._asked(calls, request, begins=begins, timeout_s=timeout_s)
        except WorkerLostError as error:
            if not begins:
                return self._refused(calls, error, begins)
        try:  # nothing was run, so that what begins an episode can be sent to the next worker
            return self._asked(calls, request, begins=begins, timeout_s=timeout_s)
        except WorkerLostError as error:
            return self._refused(calls, error, begins)

    def collect(self, batch: Batch) -> list[Any]:
        """The result of each call, or the error; in the order of the calls.

        A worker that has hung is killed and replaced. Resets that were sent to one that dies are sent to the next one,
        once, while there is time: that it was dying need not have been known yet.
        """
        found = self._found(batch)
        left = None if batch.end is None else batch.end - time.monotonic()
        if isinstance(found, WorkerLostError) and batch.begins and (left is None or left > 0):
            batch = self.ask(batch.calls, sendable(batch.calls, "the arguments"), begins=True, timeout_s=left)
            found = self._found(batch)
        if isinstance(found, WorkerLostError):
            found = [self._needs_reset(batch.calls[position][0], str(found)) for position in batch.sent]
        results = {**batch.results, **dict(zip(batch.sent, found, strict=True))}
        return [results[position] for position in range(len(batch.calls))]

    def close(self, timeout_s: float) -> list[Exception]:
        """Close the environments and end the worker; what could not be closed."""
        with self.seat.lock:
            there = self.seat.worker is not None
        last = self.seat.close(timeout_s)
        if not there:
            return []
        if last is None:
            return [
                EnvError(f"worker {self.number} did not close its environments within {timeout_s:g} s; it is killed")
            ]
        closed: list[Exception] = []
        for slot, answer in zip(self.slots, pickle.loads(last), strict=True):  # noqa: S301  # our own
            hung = EnvError(f"{self.where(slot)}: its close() did not return")
            outcome = hung if answer is None else unpacked(answer, self.where(slot))
            if isinstance(outcome, Exception):
                closed.append(outcome)
        return closed

    def where(self, slot: int) -> str:
        """Names a slot in messages."""
        return f"slot {slot} (worker {self.number})"

    def _asked(self, calls: Sequence[Call], request: bytes, *, begins: bool, timeout_s: float | None) -> Batch:
        try:
            worker = self.seat.wait() if begins else self.seat.worker
        except TiltyardError as error:
            return Batch(calls, dict.fromkeys(range(len(calls)), error), (), begins)
        with self.seat.lock:
            if begins and worker is not self.seat.worker:
                raise WorkerLostError(self.seat.why)
            results: dict[int, Any] = {}
            for position, (slot, _, _) in enumerate(calls):
                if begins:
                    self._reset_by[slot] = self.seat.generation
                elif worker is not self.seat.worker or self._reset_by[slot] != self.seat.generation:
                    results[position] = self._stale(slot)
        sent = [position for position in range(len(calls)) if position not in results]
        if not sent or worker is None:
            return Batch(calls, results, (), begins)
        if results:
            request = sendable([calls[position] for position in sent], "the arguments")
        end = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            asked = worker.ask(request, timeout_s)
        except WorkerLostError as error:
            self.seat.lost(worker, str(error))  # what is tried next is not given to it again
            raise
        return Batch(calls, results, sent, begins, worker, asked, end)

    def _found(self, batch: Batch) -> list[Any] | WorkerLostError:
        """What came of the calls that were sent, in their order; the error where their worker was lost."""
        if batch.worker is None or batch.asked is None:
            return []
        try:
            return self._read(batch, self._answers(batch.worker, batch.asked, batch.end))
        except WorkerLostError as error:
            self.seat.lost(batch.worker, str(error))
            return error

    def _answers(self, worker: Worker, asked: Asked, end: float | None) -> bytes:
        """The worker's answer, or what there is of it at the deadline."""
        answer = asked.wait(None if end is None else max(end - time.monotonic(), 0.0))
        if answer is not None:
            return answer
        part = asked.so_far(ANSWER_TIMEOUT_S)
        if part is not None and not pickle.loads(part):  # noqa: S301  # our own; it was answered a moment ago
            part, answer = None, asked.wait(ANSWER_TIMEOUT_S)
        if answer is not None:
            return answer
        why = f"{worker.name} passed step_timeout_s and was killed"
        self.seat.lost(worker, why)
        worker.kill()
        if part is None:
            raise WorkerLostError(why)
        return part

    def _read(self, batch: Batch, answers: bytes) -> list[Any]:
        """What a worker answered to the calls that were sent."""
        listed = pickle.loads(answers)  # noqa: S301  # our own
        if not isinstance(listed, list):  # the request could not be read
            return [unpacked(answers, self.where(batch.calls[position][0])) for position in batch.sent]
        found = [self._one(batch, position, answer) for position, answer in zip(batch.sent, listed, strict=True)]
        if batch.begins:
            self.seat.used = True
        return found

    def _one(self, batch: Batch, position: int, answer: bytes | None) -> Any:
        slot, method, _ = batch.calls[position]
        if answer is None:
            return EnvTimeoutError(
                f"{self.where(slot)}: {method} did not return within step_timeout_s; its worker was killed, and the "
                "worker's other slots need a reset as well. An environment that may hang can ask for a process of its "
                "own: own_process = True in its class"
            )
        result = unpacked(answer, self.where(slot))
        if not batch.begins or isinstance(result, TiltyardError):
            return result
        result, news = result
        if news is not None:
            self.facts[slot] = news
        return result

    def _stale(self, slot: int) -> ResetNeededError:
        """Why a slot takes no step: its worker was replaced, or nobody has begun an episode."""
        if self._reset_by[slot] == NOBODY:
            return ResetNeededError(f"{self.where(slot)}: reset needed: its last episode is over; reset it first")
        return self._needs_reset(slot, self.seat.why)

    def _needs_reset(self, slot: int, why: str) -> ResetNeededError:
        return ResetNeededError(f"{self.where(slot)}: reset needed: {why}, and the episode with it")

    def _refused(self, calls: Sequence[Call], error: WorkerLostError, begins: bool) -> Batch:
        results = {position: self._needs_reset(call[0], str(error)) for position, call in enumerate(calls)}
        return Batch(calls, results, (), begins)

    def _welcome(self, said: Any) -> TiltyardError | None:
        """Take what a new worker's host said at its start: the facts of each slot, or the first error among them."""
        _, answers = said
        found = {slot: unpacked(answer, self.where(slot)) for slot, answer in zip(self.slots, answers, strict=True)}
        for facts in found.values():
            if isinstance(facts, TiltyardError):
                return facts
        self.facts = found
        return None
