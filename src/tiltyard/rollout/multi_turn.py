"""`MultiTurnRollout`: trajectories as dicts, played with a local model."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tiltyard.envs.observation import MAX_OBSERVATION_CHARS
from tiltyard.errors import ConfigurationError
from tiltyard.policies.base import TokenPolicy, check_token_policy
from tiltyard.rollout.batched import BatchedRollout
from tiltyard.rollout.beside import LoopThread
from tiltyard.rollout.front import Finished, Front, Playing, Traces
from tiltyard.rollout.limits import Limits, check_count, limits_of
from tiltyard.rollout.preflight import PreflightReport, preflight_rows
from tiltyard.rollout.scoring import RewardFn, make_scoring
from tiltyard.rollout.sources import EnvSource, Row, ToolSource
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.renderer import Renderer, make_renderer
from tiltyard.tools.parsing.family import Family

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class MultiTurnRollout:
    """Plays trajectories with a local model: as many come back as went in, in their order, whatever happened to each.

    A trajectory is a dict with `messages`. What comes back is that dict with what happened over it: see `result_of`.
    A trajectory that fails has its reason in `error` and a reward of None, and stops no other.

    Attributes:
        calls: How often the rollout was called; a part of the ids of episodes that have none of their own.
        traces: Where finished trajectories are written to.
    """

    def __init__(  # noqa: PLR0913  # those of the contract, and the options of a rollout, each by its name
        self,
        policy: TokenPolicy,
        tool_manager: ToolSource | None = None,
        env_factory: Callable[[], Any] | None = None,
        max_turns: int = 6,
        max_trajectory_tokens: int | None = None,
        trace_dir: str | Path | None = None,
        *,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
        renderer: Renderer | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        parser: str | Family | None = None,
        limits: Limits | None = None,
        max_observation_chars: int | None = MAX_OBSERVATION_CHARS,
        concurrency: int = 64,
        seed: int = 0,
        score: Literal["env", "evaluate"] = "env",
        reward_fns: Mapping[str, RewardFn] | Sequence[RewardFn] | RewardFn | None = None,
        reward_weights: Mapping[str, float] | None = None,
        trace_callback: Callable[[dict[str, Any]], object] | None = None,
        success_callback: Callable[[dict[str, Any]], Any] | None = None,
        preflight: bool = True,
    ) -> None:
        """Set the rollout up; nothing is sampled and no environment is made before the first call.

        Args:
            policy: The model, such as `HFPolicy`.
            tool_manager: The tools: one `ToolManager` for all (of tools without state), a list with one for each
                trajectory, or a function that makes one, which may take the trajectory.
            env_factory: Makes environments, in place of tools; each is reused within a call, and closed at its end.
            max_turns: Model calls in one episode.
            max_trajectory_tokens: Tokens of one episode, sampled or not; None is the model's context.
            trace_dir: The folder of the traces; each rollout writes a file of its own there.
            tokenizer: The model's; the renderer is made from it.
            renderer: In place of the tokenizer.
            chat_template_kwargs: Given to each render of the chat template, such as `enable_thinking`.
            parser: The family whose tool calls are read; None recognises it from the chat template.
            limits: The other bounds.
            max_observation_chars: The most characters of one observation; head and tail are kept. None = no bound.
            concurrency: How many episodes are played at one time.
            seed: What the seeds of samples, and of tasks without one, derive from.
            score: "env" takes the environment's rewards; "evaluate" asks its `evaluate` for one number an episode.
            reward_fns: Functions of the finished trajectory, by name; see `Scoring`.
            reward_weights: What each of them, and "env", counts.
            trace_callback: Called with each result as soon as it is there, in the caller's thread.
            success_callback: Decides whether a trajectory was a success, in place of the environment.
            preflight: Try out tools, templates and a throwaway environment at the first call.

        Raises:
            ConfigurationError: An argument cannot be used.
        """
        check_token_policy(policy)
        if renderer is None and tokenizer is None:
            raise ConfigurationError(
                "MultiTurnRollout needs the model's tokenizer: give tokenizer=... (or renderer=...)"
            )
        check_count("concurrency", concurrency)
        bounds = limits_of(max_turns, max_trajectory_tokens, limits)
        self.calls = 0
        self.traces = Traces(trace_dir, trace_callback)
        scoring = make_scoring(score, reward_fns, reward_weights, success_callback, bounds.step_timeout_s)
        source = EnvSource(tool_manager, env_factory, max_observation_chars=max_observation_chars)
        self._front = Front(source, scoring, self.traces, seed)
        self._policy = policy
        self._limits = bounds
        self._concurrency = concurrency
        self._seed = seed
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._template = chat_template_kwargs
        self._parser = parser
        self._wants_preflight = preflight
        self._report: PreflightReport | None = None
        self._driver: BatchedRollout | None = None

    def __call__(self, trajectories: Sequence[Row]) -> list[dict[str, Any]]:
        """Play the trajectories; the results are in their order.

        Raises:
            ConfigurationError: The trajectories, tools or environments cannot be played.
            TemplateError: The chat template cannot be used with these tools.
        """
        found = {finished.number: finished.result for finished in self._play(trajectories)}
        return [found[number] for number in sorted(found)]

    def stream(self, trajectories: Iterable[Row]) -> Generator[dict[str, Any]]:
        """Play the trajectories and give each result as soon as it is there, whatever its place.

        The trajectories are taken one by one, `concurrency` at a time, and nothing is kept of those that are over:
        they may be more than fit in memory. Closing the generator ends the run.

        Raises:
            ConfigurationError: A trajectory, a tool or an environment cannot be played.
            TemplateError: The chat template cannot be used with these tools.
        """
        for finished in self._play(trajectories):
            yield finished.result

    def preflight(self, row: Row | None = None) -> PreflightReport:
        """Try out what the rollout relies on; done once, at the first call, unless it was asked for before.

        Args:
            row: A trajectory, whose task the throwaway environment is reset to.

        Raises:
            ConfigurationError: Something cannot work; the message names the cure.
        """
        if self._report is None:
            self._report, self._renderer = preflight_rows(
                self._front.source,
                row or {},
                renderer=self._renderer,
                tokenizer=self._tokenizer,
                chat_template_kwargs=self._template,
                parser=self._parser,
                timeout_s=self._limits.step_timeout_s,
            )
        return self._report

    def _play(self, rows: Iterable[Row]) -> Generator[Finished]:
        playing = Playing(self._front, rows, self.calls)
        self.calls += 1
        with ExitStack() as stack:
            stack.callback(playing.close)
            loop = stack.enter_context(LoopThread(self._front.scoring.open)) if self._front.scoring.needed else None
            played = self._ready(rows).stream(playing.jobs())
            stack.callback(played.close)
            if loop is None:
                for trajectory in played:
                    yield playing.finish(trajectory)
            else:
                yield from self._scored(played, playing, loop)

    def _scored(self, played: Iterable[Trajectory], playing: Playing, loop: LoopThread) -> Generator[Finished]:
        """Score finished episodes while others are played; no more wait for their score than are played at one time."""
        waiting: deque[Future[Trajectory]] = deque()
        for trajectory in played:
            waiting.append(loop.submit(playing.scored(trajectory)))
            while waiting and (waiting[0].done() or len(waiting) > self._concurrency):
                yield playing.finish(waiting.popleft().result())
        while waiting:
            yield playing.finish(waiting.popleft().result())

    def _ready(self, rows: Iterable[Row]) -> BatchedRollout:
        if self._driver is None:
            if self._wants_preflight:
                self.preflight(rows[0] if isinstance(rows, Sequence) and rows else None)
            if self._renderer is None:
                assert self._tokenizer is not None
                self._renderer = make_renderer(
                    self._tokenizer,
                    tools=bool(self._front.source.given_tools),
                    chat_template_kwargs=self._template,
                    parser=self._parser,
                )
            self._driver = BatchedRollout(
                self._policy, self._renderer, self._limits, seed=self._seed, max_live=self._concurrency
            )
        return self._driver
