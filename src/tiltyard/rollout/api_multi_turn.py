"""`APIMultiTurnRollout`: trajectories as dicts, played with a served model."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from tiltyard.envs.observation import MAX_OBSERVATION_CHARS
from tiltyard.errors import ConfigurationError
from tiltyard.policies.base import AsyncPolicy, Sampling, check_async_policy
from tiltyard.rollout.beside import on_thread
from tiltyard.rollout.beside_workers import settle_all, started
from tiltyard.rollout.blocking import run_blocking
from tiltyard.rollout.concurrent import ConcurrentRollout
from tiltyard.rollout.front import Finished, Front, Playing, Traces
from tiltyard.rollout.limits import Limits, limits_of
from tiltyard.rollout.placement import HERE, Placement
from tiltyard.rollout.preflight import PreflightReport, preflight_rows
from tiltyard.rollout.rollout_workers import RolloutWorkers
from tiltyard.rollout.scoring import RewardFn, make_scoring
from tiltyard.rollout.sources import EnvSource, Row, ToolSource
from tiltyard.rollout.stream_thread import StreamThread
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.ledger import Ledger

MAX_TOKENS_NAMES = ("max_tokens", "max_completion_tokens")
"""What servers call the token limit of one turn; here it is a limit of the episode's turns."""

_END = object()


class APIMultiTurnRollout:
    """Plays trajectories with a model behind an API: as many come back as went in, in their order.

    A trajectory is a dict with `messages`. What comes back is that dict with what happened over it: see `result_of`.
    A trajectory that fails has its reason in `error` and a reward of None, and stops no other. Where the server gives
    token ids, the results have them as those of `MultiTurnRollout` do.

    Attributes:
        calls: How often the rollout was called; a part of the ids of episodes that have none of their own.
        traces: Where finished trajectories are written to.
    """

    def __init__(  # noqa: PLR0913  # those of the contract, and the options of a rollout, each by its name
        self,
        api: AsyncPolicy,
        tool_manager: ToolSource | None = None,
        sampling_params: Sampling | Mapping[str, Any] | None = None,
        max_turns: int = 6,
        concurrency: int = 64,
        extra_body: Mapping[str, Any] | None = None,
        trace_dir: str | Path | None = None,
        *,
        env_factory: Callable[[], Any] | None = None,
        max_trajectory_tokens: int | None = None,
        limits: Limits | None = None,
        max_observation_chars: int | None = MAX_OBSERVATION_CHARS,
        seed: int | None = None,
        score: Literal["env", "evaluate"] = "env",
        reward_fns: Mapping[str, RewardFn] | Sequence[RewardFn] | RewardFn | None = None,
        reward_weights: Mapping[str, float] | None = None,
        trace_callback: Callable[[dict[str, Any]], object] | None = None,
        success_callback: Callable[[dict[str, Any]], Any] | None = None,
        preflight: bool = True,
        placement: Placement = HERE,
    ) -> None:
        """Set the rollout up; nothing is sent and no environment is made before the first call.

        Args:
            api: The served model, such as `OpenAI(...)`.
            tool_manager: The tools: one `ToolManager` for all (of tools without state), a list with one for each
                trajectory, or a function that makes one, which may take the trajectory.
            sampling_params: Fields of each request, such as `temperature`; `max_tokens` bounds one turn.
            max_turns: Model calls in one episode.
            concurrency: How many episodes are played at one time.
            extra_body: Further fields of each request.
            trace_dir: The folder of the traces; each rollout writes a file of its own there.
            env_factory: Makes environments, in place of tools; each is reused within a call, and closed at its end.
            max_trajectory_tokens: Tokens of one episode by the server's count; None is what the server takes.
            limits: The other bounds.
            max_observation_chars: The most characters of one observation; head and tail are kept. None = no bound.
            seed: What the seeds of requests, and of tasks without one, derive from; None sends no seed.
            score: "env" takes the environment's rewards; "evaluate" asks its `evaluate` for one number an episode.
            reward_fns: Functions of the finished trajectory, by name; see `Scoring`.
            reward_weights: What each of them, and "env", counts.
            trace_callback: Called with each result as soon as it is there, on the event loop.
            success_callback: Decides whether a trajectory was a success, in place of the environment.
            preflight: Try out tools and a throwaway environment at the first call.
            placement: Where episodes are played: here, or whole on workers, which ask the server themselves and are
                started for each call. What they need is sent to them: the tools or environments, `api` and its key,
                and with `score="evaluate"` the reward functions.

        Raises:
            ConfigurationError: An argument cannot be used.
        """
        check_async_policy(api)
        bounds = limits_of(max_turns, max_trajectory_tokens, limits)
        fields: Any = sampling_params
        if isinstance(sampling_params, Mapping):
            fields, per_turn = _without_bound(sampling_params)
            bounds = _bounded(bounds, per_turn, given=limits)
        if fields or extra_body:
            if not hasattr(api, "with_fields"):
                raise ConfigurationError(
                    f"sampling_params and extra_body are for OpenAI(...); {type(api).__name__} has no with_fields: "
                    "give it its settings itself"
                )
            api = api.with_fields(fields or None, extra_body)  # pyright: ignore[reportAttributeAccessIssue]  # just seen
        self.calls = 0
        self.traces = Traces(trace_dir, trace_callback)
        scoring = make_scoring(score, reward_fns, reward_weights, success_callback, bounds.step_timeout_s)
        source = EnvSource(tool_manager, env_factory, max_observation_chars=max_observation_chars)
        self._front = Front(source, scoring, self.traces, seed or 0)
        self._limits = bounds
        self._driver = ConcurrentRollout(api, bounds, concurrency=concurrency, seed=seed)
        self._api, self._seed, self._placement = api, seed, placement
        self._wants_preflight = preflight
        self._report: PreflightReport | None = None

    @property
    def ledger(self) -> Ledger:
        """What the tokens went through, over all calls, where the server gives them."""
        return self._driver.ledger

    def __call__(self, trajectories: Sequence[Row]) -> list[dict[str, Any]]:
        """Play the trajectories and wait for them, also in a notebook; the results are in their order.

        Raises:
            ConfigurationError: The trajectories, tools or environments cannot be played.
        """
        return run_blocking(lambda: self.run_async(trajectories))

    async def run_async(self, trajectories: Sequence[Row]) -> list[dict[str, Any]]:
        """Play the trajectories on the event loop that is running; the results are in their order.

        Raises:
            ConfigurationError: The trajectories, tools or environments cannot be played.
        """
        found: dict[int, dict[str, Any]] = {}

        async def keep(finished: Finished) -> None:
            found[finished.number] = finished.result

        await self._play(trajectories, keep)
        return [found[number] for number in sorted(found)]

    async def stream_async(self, trajectories: Iterable[Row]) -> AsyncGenerator[dict[str, Any]]:
        """Play the trajectories and give each result as soon as it is there, whatever its place.

        The trajectories are taken one by one, `concurrency` at a time, and nothing is kept of those that are over:
        they may be more than fit in memory. A reader that is slow slows the episodes down. Closing the generator ends
        the run.

        Raises:
            ConfigurationError: A trajectory, a tool or an environment cannot be played.
        """
        ready: asyncio.Queue[Any] = asyncio.Queue(self._driver.concurrency)

        async def play() -> None:
            try:
                await self._play(trajectories, ready.put)
            finally:
                # There may be no room in the queue: whoever waits for an item is woken by the task's end.
                if not ready.full():
                    ready.put_nowait(_END)

        task = asyncio.create_task(play())
        try:
            while not (task.done() and ready.empty()):
                finished = await ready.get()
                if finished is _END:
                    break
                yield finished.result
            await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def stream(self, trajectories: Iterable[Row]) -> Generator[dict[str, Any]]:
        """As `stream_async`, for callers that do not await: the episodes are played on a thread of their own.

        Raises:
            ConfigurationError: A trajectory, a tool or an environment cannot be played.
        """
        thread = StreamThread(lambda: self.stream_async(trajectories), self._driver.concurrency)
        try:
            yield from thread.results()
        finally:
            thread.stop()

    def preflight(self, row: Row | None = None) -> PreflightReport:
        """Try out what the rollout relies on; done once, at the first call, unless it was asked for before.

        Args:
            row: A trajectory, whose task the throwaway environment is reset to.

        Raises:
            ConfigurationError: Something cannot work; the message names the cure.
        """
        if self._report is None:
            timeout_s = self._limits.step_timeout_s
            self._report, _ = preflight_rows(self._front.source, row or {}, timeout_s=timeout_s)
        return self._report

    async def _play(self, rows: Iterable[Row], give: Callable[[Finished], Any]) -> None:
        playing = Playing(self._front, rows, self.calls)
        self.calls += 1
        if self._wants_preflight and self._report is None:
            first = rows[0] if isinstance(rows, Sequence) and rows else None
            await on_thread(lambda: self.preflight(first))

        async def settle(trajectory: Trajectory) -> None:
            if self._front.scoring.needed:
                trajectory = await playing.scored(trajectory)
            await give(playing.finish(trajectory))

        try:
            if self._placement.remote:
                await self._play_on_workers(playing, give)
            else:
                async with self._front.scoring.open():
                    await self._driver.run_async(playing.jobs(), settle, keep=False)
        finally:
            # On a thread: a cancellation of this task does not stop a close half-way.
            await asyncio.shield(on_thread(playing.close))

    async def _play_on_workers(self, playing: Playing, give: Callable[[Finished], Any]) -> None:
        """Play on workers of this call. What asks an episode's environment for its score is applied there."""
        scoring = self._front.scoring
        there = scoring if scoring.score == "evaluate" else None

        async def settle(trajectory: Trajectory) -> None:
            if scoring.needed and there is None:
                trajectory = await playing.scored(trajectory)
            await give(playing.finish(trajectory))

        make = partial(
            RolloutWorkers,
            self._front.source,
            self._api,
            self._limits,
            placement=self._placement,
            concurrency=self._driver.concurrency,
            seed=self._seed,
            scoring=there,
        )
        async with started(make) as workers, scoring.open():
            try:
                await settle_all(workers.begin(playing.orders()), settle, workers.concurrency)
            finally:
                self._driver.ledger += workers.ledger


def _without_bound(fields: Mapping[str, Any]) -> tuple[dict[str, Any], int | None]:
    """Request fields without a token limit, and that limit."""
    bounds = [fields[name] for name in MAX_TOKENS_NAMES if fields.get(name) is not None]
    return {name: value for name, value in fields.items() if name not in MAX_TOKENS_NAMES}, min(bounds, default=None)


def _bounded(bounds: Limits, per_turn: int | None, *, given: Limits | None) -> Limits:
    if per_turn is None:
        return bounds
    if given is not None and given.max_tokens_per_turn not in (Limits().max_tokens_per_turn, per_turn):
        raise ConfigurationError(
            f"sampling_params has max_tokens {per_turn!r} and limits.max_tokens_per_turn is "
            f"{given.max_tokens_per_turn!r}; they are one limit: give one of them"
        )
    return replace(bounds, max_tokens_per_turn=per_turn)
