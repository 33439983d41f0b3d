"""A few episodes without a model: how long they take, how much they say, what they hold, and how they end."""

import json
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tiltyard._boundary import guarded
from tiltyard.envs.observation import TRUNCATED_MARK
from tiltyard.envs.probes import first_replies
from tiltyard.envs.turns import Turns
from tiltyard.errors import EnvError, RolloutError
from tiltyard.rollout.episode import EnvCall, episode_flow
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.rollout.workers import EnvWorkers
from tiltyard.types import Prompt, Reply, Task, Turn

BYTES_A_TOKEN = 4
"""What tokens are estimated with: no tokenizer is loaded, and of English text a token is about so many bytes."""

SANDBOX_MEMORY = "sandbox_memory_mib"
"""The attribute with which an environment says how much memory the sandbox of one episode has."""


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """One episode that a scripted player played.

    Attributes:
        trajectory: What happened.
        env_seconds: Time in the environment's reset and steps.
        longest_s: Time of the longest of them.
        cut: Whether an observation was longer than its budget of characters.
    """

    trajectory: Trajectory
    env_seconds: float
    longest_s: float
    cut: bool

    @property
    def read_tokens(self) -> int:
        """About how many tokens of the episode are not the model's: tools, prompts, observations."""
        shown = [message.get("content") or "" for message in self.trajectory.messages if message["role"] != "assistant"]
        shown += [json.dumps(schema) for schema in self.trajectory.tools]
        return -(-sum(len(str(text).encode()) for text in shown) // BYTES_A_TOKEN)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What was played.

    Attributes:
        groups: The episodes of each task, all with another script.
        memory_bytes: What Python holds for one environment after an episode; None for one behind a URL.
        sandbox_mib: Memory of the sandbox that an episode has, where the environment says so.
    """

    groups: tuple[tuple[Rehearsed, ...], ...]
    memory_bytes: int | None
    sandbox_mib: int | None

    @property
    def episodes(self) -> tuple[Rehearsed, ...]:
        """All of them."""
        return tuple(episode for group in self.groups for episode in group)


@dataclass(slots=True)
class _Player:
    """Plays whole episodes, the environment's calls on a thread with a deadline."""

    limits: Limits
    workers: EnvWorkers
    env_seconds: list[float] = field(default_factory=list)
    cut: bool = False

    def play(self, turns: Turns, task: Task, name: str, script: int) -> Rehearsed:
        self.env_seconds, self.cut = [], False
        flow = episode_flow(turns, task, self.limits, name)
        send: Callable[[Any], Prompt | EnvCall] = flow.send
        value: Any = None
        while True:
            try:
                request = send(value)
            except StopIteration as end:
                return Rehearsed(end.value, sum(self.env_seconds), max(self.env_seconds), self.cut)
            send = flow.send
            try:
                value = self._answer(request, script)
            except RolloutError as failure:
                send, value = flow.throw, failure

    def _answer(self, request: Prompt | EnvCall, script: int) -> Any:
        if isinstance(request, Prompt):
            return guarded("play", EnvError, _reply, request, script)
        began = time.perf_counter()
        try:
            turn: Turn = self.workers.run(request.call)
        finally:
            self.env_seconds.append(time.perf_counter() - began)
        self.cut |= TRUNCATED_MARK in turn.info
        return turn


def rehearse(
    make: Callable[[], Turns], tasks: Sequence[Task], limits: Limits, *, members: int = 2, measured: bool = True
) -> Rehearsal:
    """Play each task with some scripts that know nothing of it; environments are made once and used again.

    Args:
        make: Makes an environment.
        tasks: What is played.
        limits: What bounds an episode.
        members: Episodes of each task.
        measured: Whether to look at memory, with an environment more: not of one that runs elsewhere.

    Raises:
        RolloutError: An environment could not be made or closed.
        EnvTimeoutError: It could not in the time of a step.
    """
    workers = EnvWorkers(limits.step_timeout_s, name="tiltyard-rehearsal")
    player = _Player(limits, workers)
    making = partial(guarded, "making the environment", EnvError, make)
    made: list[Turns] = []
    try:
        made = [workers.run(making) for _ in range(members)]
        groups = tuple(
            tuple(player.play(turns, task, f"{number}-{script}", script) for script, turns in enumerate(made))
            for number, task in enumerate(tasks)
        )
        held = _held(player, making, tasks[0], made) if measured else None
        said = [getattr(source, SANDBOX_MEMORY, None) for source in made[0].sources]
        return Rehearsal(groups, held, next((mib for mib in said if isinstance(mib, int) and mib > 0), None))
    finally:
        try:
            for turns in made:
                workers.run(partial(guarded, "closing the environment", EnvError, turns.close))
        finally:
            workers.stop()


def _reply(prompt: Prompt, script: int) -> Reply:
    """Script 0 counts from 1, script 1 says the last word that it saw; tools are called in another order in each."""
    words = str(prompt.messages[-1].get("content") or "").split()
    if prompt.tools or not script or not words:
        return first_replies(prompt.messages, prompt.tools, script)
    return Reply(words[-1].strip(".,:;!?\"'()"))


def _held(player: _Player, making: Callable[[], Turns], task: Task, made: list[Turns]) -> int:
    """What is held for one more environment that has played."""
    ours = not tracemalloc.is_tracing()
    if ours:
        tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made.append(player.workers.run(making))
        player.play(made[-1], task, "memory", 0)
        return max(0, tracemalloc.get_traced_memory()[0] - before)
    finally:
        if ours:
            tracemalloc.stop()
