"""One text environment driven by hand with token ids: reset, sample, step."""

import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

from tiltyard._boundary import shown
from tiltyard.envs.openenv.wire import MESSAGE
from tiltyard.envs.qa import QADatasetEnv
from tiltyard.errors import ConfigurationError, EnvError, EpisodeOverError, RolloutError
from tiltyard.rewards.rubric import Scores
from tiltyard.rollout.entrypoint import build_env, is_url, load_processor, max_turns_of, remote_env, text_turns
from tiltyard.rollout.in_process import InProcessEnvClient
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.token_episode import TokenEpisode
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.rollout.workers import Closing, EnvWorkers
from tiltyard.rows import Rows, load_rows, split_rows
from tiltyard.tokens.renderer import Renderer, make_renderer
from tiltyard.types import FinishReason, Message, Task, ToolSchema, Turn


class RolloutHarness:
    """A text environment at the level of tokens, for a sampling loop of your own.

    `reset` and `step` return the ids to continue. What is sampled is taken as it is and never encoded again. It is
    the same flow and the same transcript as `BatchedRollout` runs for many episodes at once.

    Attributes:
        env: The environment.
        turns: The environment as turns.
        limits: What bounds an episode.
        renderer: Writes and reads the tokens.
        info: The environment's `info` of the last reset or step.
    """

    def __init__(  # noqa: PLR0913  # the options of the contract, each by its name
        self,
        env_client: Any,
        tokenizer: Any,
        max_turns: int = 1,
        *,
        limits: Limits | None = None,
        renderer: Renderer | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        observation_field: str | None = None,
        observation_processor: Callable[[Any], str] | str | None = None,
        system_prompt: str | None = None,
        action_field: str = MESSAGE,
        mcp_tool: str | None = None,
        request_timeout_s: float | None = None,
    ) -> None:
        """Set the harness up; the environment is not called, and a server is not dialled.

        Args:
            env_client: The URL of an OpenEnv server; an environment, an `InProcessEnvClient` around one, or another
                client with its methods.
            tokenizer: A tokenizer of transformers with a chat template.
            max_turns: Model calls in one episode.
            limits: The other bounds; its `max_turns` is not used.
            renderer: In place of one made from the tokenizer, to share it between harnesses.
            chat_template_kwargs: Given to each render of the chat template.
            observation_field: The field of an observation that the model sees; None shows what is informative.
            observation_processor: Makes the text of an observation, in place of the above; a function, or
                `module:fn` or `path.py:fn`. Pure: it runs on threads.
            system_prompt: Leads the conversation, in place of the environment's own.
            action_field: Behind a URL, the field of an action that the model's text goes into.
            mcp_tool: Behind a URL, the tool of an MCP environment that the model's text is given to.
            request_timeout_s: How long one reset or step may take, 0 = for ever; None takes that of `limits`.

        Raises:
            ConfigurationError: The client is no environment, or an option is for another kind of it.
            TemplateError: The chat template cannot be used.
        """
        self.limits = replace(limits or Limits(), max_turns=max_turns)
        if request_timeout_s is not None:
            self.limits = replace(self.limits, step_timeout_s=request_timeout_s or None)
        if isinstance(env_client, str):
            env_client = remote_env(env_client, action_field, mcp_tool, self.limits.step_timeout_s or 0.0)
        elif mcp_tool is not None or action_field != MESSAGE:
            raise ConfigurationError(
                f"mcp_tool and action_field are for environments behind a URL, not for a {type(env_client).__name__}"
            )
        # The client's checks of the protocol's order are those of the turns; the errors name the environment itself.
        self.env = env_client.env if isinstance(env_client, InProcessEnvClient) else env_client
        self.renderer = renderer or make_renderer(tokenizer, chat_template_kwargs=chat_template_kwargs)
        self.turns = text_turns(self.env, observation_field, load_processor(observation_processor))
        self.info: Mapping[str, Any] = {}
        self._workers = EnvWorkers(self.limits.step_timeout_s)
        self._episode: TokenEpisode | None = None
        self._opening: tuple[Message, ...] = ({"role": "system", "content": system_prompt},) if system_prompt else ()
        self._evaluation = False
        self._episodes = 0
        self._closed = False

    @classmethod
    def local(cls, env: Any, tokenizer: Any, max_turns: int = 1, **options: Any) -> Self:
        """Drive an environment in this process.

        Args:
            env: A text environment, or any other environment that Tiltyard knows.
            tokenizer: A tokenizer of transformers with a chat template.
            max_turns: Model calls in one episode.
            options: The keyword arguments of `RolloutHarness`.
        """
        return cls(env, tokenizer, max_turns, **options)

    @classmethod
    def from_spec(
        cls,
        spec: str | Callable[..., Any],
        env_config: Mapping[str, Any] | None,
        tokenizer: Any,
        max_turns: int | None = None,
        **options: Any,
    ) -> Self:
        """Drive the environment that an entrypoint makes, or the one behind a URL.

        Args:
            spec: `module:attr`, `path.py:attr`, the class or function itself, or the URL of an OpenEnv server.
            env_config: Its keyword arguments; `system_prompt` is set on the environment and not passed.
            tokenizer: A tokenizer of transformers with a chat template.
            max_turns: Model calls in one episode; None takes the environment's own `max_turns`, which a server is
                not asked for.
            options: The keyword arguments of `RolloutHarness`.

        Raises:
            ConfigurationError: The entrypoint cannot be loaded, or does not take these arguments; or the
                environment has no `max_turns` and none is given; or `env_config` is given with a URL.
        """
        if isinstance(spec, str) and is_url(spec):
            if max_turns is None or env_config:
                raise ConfigurationError(
                    f"an environment behind a URL needs max_turns and takes no env_config, which its server has; got "
                    f"max_turns={max_turns!r} and env_config={env_config!r} for {spec!r}"
                )
            return cls(spec, tokenizer, max_turns, **options)
        env = build_env(spec, env_config)
        return cls.local(env, tokenizer, max_turns_of(env, spec) if max_turns is None else max_turns, **options)

    @classmethod
    def from_dataset(
        cls,
        rows: Rows | Sequence[Mapping[str, Any]] | str,
        rubric: Scores,
        tokenizer: Any,
        *,
        prompt_template: Mapping[str, str] | None = None,
        held_out: Rows | Sequence[Mapping[str, Any]] | None = None,
        train_test_split: float | None = None,
        max_turns: int = 1,
        **options: Any,
    ) -> Self:
        """Ask data rows, and score the answers with a rubric.

        Args:
            rows: What is trained on, or what `load_rows` takes.
            rubric: A rubric, or a function as `tiltyard.rewards.answer` says.
            tokenizer: A tokenizer of transformers with a chat template.
            prompt_template: See `QADatasetEnv`.
            held_out: What `eval_mode` serves.
            train_test_split: In place of `held_out`: the share of `rows` that is trained on; the rest is held out.
            max_turns: Answers to one row.
            options: `max_reward` and `retry` of `QADatasetEnv`, and the keyword arguments of `RolloutHarness`.

        Raises:
            ConfigurationError: The rows cannot be loaded, or lack what the prompt or the rubric asks for.
        """
        whole = rows if isinstance(rows, Rows) else load_rows(rows)
        if train_test_split is not None:
            if held_out is not None:
                raise ConfigurationError("held_out and train_test_split both say what is held out; give one")
            whole, held_out = (parts := split_rows(whole, train_test_split)).train, parts.held_out
        asked = {name: options.pop(name) for name in ("max_reward", "retry") if name in options}
        env = QADatasetEnv(
            whole, rubric, prompt_template=prompt_template, held_out=held_out, max_turns=max_turns, **asked
        )
        return cls.local(env, tokenizer, max_turns, **options)

    @property
    def tools(self) -> Sequence[ToolSchema]:
        """The tools that the model is shown in the episode that was started last."""
        return self.turns.tools()

    @property
    def dataset_size(self) -> int | None:
        """How many rows a reset can name: those of training, or, in `eval_mode`, the held-out ones; None for no rows.

        It is None in `eval_mode` too where the environment does not say how many those are (`evaluation_size`).
        """
        return getattr(self.env, "evaluation_size" if self._evaluation else "dataset_size", None)

    @property
    def done(self) -> bool:
        """True when no episode is under way: `step` would raise."""
        return self._episode is None or self._episode.trajectory is not None

    @property
    def max_tokens(self) -> int:
        """How many tokens the next turn may have: the per-turn limit, or the room that is left in the context."""
        return self._under_way("max_tokens").max_tokens

    @contextmanager
    def eval_mode(self) -> Iterator[Self]:
        """Within this block a reset serves the held-out split."""
        before, self._evaluation = self._evaluation, True
        try:
            yield self
        finally:
            self._evaluation = before

    def reset(self, seed: int | None = None, *, row_index: int | None = None) -> list[int]:
        """Start an episode and return the ids of the prompt; empty when it leaves no room, which ends the episode.

        Args:
            seed: Passed to the environment.
            row_index: The data row, for an environment with a `dataset_size`.

        Raises:
            RolloutError: The environment failed; `get_episode_data` has the failed episode.
            EpisodeOverError: The harness is closed.
        """
        if self._closed:
            raise EpisodeOverError("reset() after close(): make a new harness around a new environment")
        if self._episode is not None:
            self._episode.abandon()
        self._episodes += 1
        task = Task(seed=seed, row_index=row_index, evaluation=self._evaluation, messages=self._opening)
        episode = TokenEpisode(self.turns, task, self.limits, f"{self._episodes - 1:05d}", renderer=self.renderer)
        self._episode = episode
        episode.start()
        self._call_env(episode)
        return self._prompt(episode)

    def step(
        self,
        token_ids: Sequence[int],
        sampling_logps: Sequence[float] | None = None,
        *,
        finish_reason: FinishReason | None = None,
    ) -> tuple[list[int], float | None, bool, bool, Mapping[str, Any]]:
        """Take one turn of the model and return `(prompt_ids, reward, terminated, truncated, info)`.

        Args:
            token_ids: What was sampled, the end token included; or the prompt with what was sampled after it, as
                `generate` returns them. A tensor of one row is taken too.
            sampling_logps: One log-probability for each sampled id; None when they are not known.
            finish_reason: Why sampling stopped. None derives it: "length" for a turn of `max_tokens` tokens without
                an end token, else "stop". A turn that was cut is not sent to the environment; it ends the episode.

        Returns:
            The ids of the next prompt, empty at the end; the reward of the turn, None when it was not scored; whether
            the environment ended the episode; whether it was cut for a reason outside the task; and the `info`.

        Raises:
            EpisodeOverError: The episode is over, or was never reset, or the harness is closed.
            RolloutError: The environment failed; `get_episode_data` has the failed episode.
            ConfigurationError: These are no token ids.
            TranscriptError: There is not one finite log-probability for each sampled id.
        """
        episode = self._under_way("step()")
        ids = _sampled_part(token_ids, episode.transcript.ids)
        if finish_reason is None:
            ended = bool(ids) and ids[-1] in self.renderer.stop_ids
            finish_reason = "length" if not ended and len(ids) >= episode.max_tokens else "stop"
        logprobs = None if sampling_logps is None else tuple(_plain_list(sampling_logps))
        episode.sampled(ids, logprobs, finish_reason)
        turn = self._call_env(episode)
        trajectory = episode.trajectory
        if trajectory is None:
            return self._prompt(episode), turn.reward, turn.done, False, self.info
        # The loop, not the environment, has the last word on a turn that was cut.
        return [], trajectory.rewards[-1], turn.done, trajectory.truncated, self.info

    def get_episode_data(self) -> Trajectory:
        """The finished episode, with its transcript.

        Raises:
            ConfigurationError: There is none yet.
        """
        if self._episode is None or self._episode.trajectory is None:
            raise ConfigurationError("the episode is not over; call step() until `done`, then get_episode_data()")
        return self._episode.trajectory

    def close(self, timeout_s: float = 5.0) -> None:
        """Close the environment; later calls do nothing. One that hangs is not waited for beyond `timeout_s`.

        Raises:
            Exception: What the environment's `close` raised.
        """
        if self._closed:
            return
        self._closed = True
        self._workers.stop()
        closing = Closing()
        closing.start([self.turns.close])
        closing.wait(timeout_s)
        for error in closing.errors:
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _under_way(self, what: str) -> TokenEpisode:
        if self._closed:
            raise EpisodeOverError(f"{what} after close(): make a new harness around a new environment")
        if self._episode is None or self._episode.trajectory is not None:
            raise EpisodeOverError(f"{what} without an episode under way; call reset() first")
        return self._episode

    def _call_env(self, episode: TokenEpisode) -> Turn:
        """Run what the episode asks of the environment; the last turn is what it said, an unscored one if nothing."""
        turn = Turn(reward=None)
        while episode.env_call is not None:
            try:
                turn = self._workers.run(episode.env_call.call)
            except RolloutError as error:
                episode.fail(error)
                raise
            self.info = turn.info
            episode.env_answered(turn)
        ended = episode.trajectory
        if ended is not None and ended.ending is Ending.ENV_ERROR:  # what it said cannot be put into tokens
            raise EnvError(str(ended.error).removeprefix("EnvError: "))
        return turn

    def _prompt(self, episode: TokenEpisode) -> list[int]:
        return [] if episode.trajectory is not None else list(episode.transcript.ids)


def _plain_list(values: Any) -> list[Any]:
    """A sequence, array or tensor as a list; one row of two axes is that row."""
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    return listed[0] if len(listed) == 1 and isinstance(listed[0], list) else listed


def _sampled_part(token_ids: Any, prompt: list[int]) -> tuple[int, ...]:
    ids = None if isinstance(token_ids, str) or not hasattr(token_ids, "__iter__") else _plain_list(token_ids)
    if ids is None or not all(isinstance(one, numbers.Integral) for one in ids):
        raise ConfigurationError(f"token_ids must be the ids that the model sampled, got {shown(token_ids)}")
    return tuple(ids[len(prompt) :] if prompt and ids[: len(prompt)] == prompt else ids)
