"""What plays episodes that are not learned from: a model of this process, or one behind a server."""

from __future__ import annotations  # the two rollouts are named without importing what either needs

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from tiltyard.rollout.jobs import Job
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.ledger import Ledger
from tiltyard.train.recorder import WatchedPolicy

if TYPE_CHECKING:
    from tiltyard.policies.base import AsyncPolicy
    from tiltyard.rollout.batched import BatchedRollout
    from tiltyard.rollout.concurrent import ConcurrentRollout
    from tiltyard.types import Prompt, Reply


class Player(Protocol):
    """Plays episodes, and knows what their tokens went through."""

    @property
    def tokens(self) -> int:
        """Tokens that were sampled so far, by the server's count where it is a server that samples."""
        ...

    @property
    def ledger(self) -> Ledger:
        """What the tokens of all episodes say."""
        ...

    def play(self, jobs: Sequence[Job], on_finished: Callable[[Trajectory], None]) -> None:
        """Play all jobs; each trajectory is handed over as soon as it is finished."""
        ...


class LocalPlayer:
    """Plays with a model of this process. It takes the place of the rollout's policy, to see what is sampled."""

    def __init__(self, rollout: BatchedRollout, sampling_weights: Callable[[], AbstractContextManager[Any]]) -> None:
        """Set the player up.

        Args:
            rollout: Plays.
            sampling_weights: A context in which the model's weights are those to sample with.
        """
        self.tokens = 0
        self.ledger = Ledger(rewrites_history=rollout.renderer.rewrites_history)
        self._rollout = rollout
        self._sampling_weights = sampling_weights
        rollout.policy = WatchedPolicy(rollout.policy, self)

    def watched(self, counted: Ledger) -> None:
        """Count what the policy's prompts say."""
        self.ledger += counted

    def play(self, jobs: Sequence[Job], on_finished: Callable[[Trajectory], None]) -> None:
        """Play all jobs."""

        def finished(trajectory: Trajectory) -> None:
            if trajectory.transcript is not None:
                self.ledger.observe(trajectory.transcript)
                self.tokens += trajectory.transcript.sampled
            on_finished(trajectory)

        with self._sampling_weights():
            self._rollout.run(jobs, finished)


class ServedPlayer:
    """Plays with a model behind a server. It takes the place of the rollout's policy, to see what is sampled."""

    def __init__(self, rollout: ConcurrentRollout) -> None:
        self.tokens = 0
        self._rollout = rollout
        rollout.policy = _Counted(rollout.policy, self)

    @property
    def ledger(self) -> Ledger:
        """What the tokens of all episodes say, where the server gives them."""
        return self._rollout.ledger

    def play(self, jobs: Sequence[Job], on_finished: Callable[[Trajectory], None]) -> None:
        """Play all jobs."""
        self._rollout.run(jobs, on_finished, keep=False)


class _Counted:
    """A policy whose sampled tokens are counted when they come, as an episode can take minutes."""

    def __init__(self, policy: AsyncPolicy, player: ServedPlayer) -> None:
        self._policy = policy
        self._player = player

    async def reply(self, prompt: Prompt, *, max_tokens: int | None) -> Reply:
        reply = await self._policy.reply(prompt, max_tokens=max_tokens)
        sampled = len(reply.token_ids) if reply.token_ids is not None else reply.sampled_tokens
        self._player.tokens += sampled or 0
        return reply

    async def __aenter__(self) -> Any:
        return await self._policy.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._policy.__aexit__(kind, error, traceback)
