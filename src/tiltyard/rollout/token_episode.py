"""One episode at the level of tokens: what the drivers of local models share."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tiltyard.errors import EnvError, PromptTooLongError, RolloutError, TemplateError
from tiltyard.rollout.episode import EnvCall, episode_flow
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.renderer import Renderer
from tiltyard.tokens.transcript import Transcript
from tiltyard.tools.messages import begun_answer
from tiltyard.types import FinishReason, Message, Prompt, Task, Turn


class TokenEpisode:
    """An episode flow and the transcript that goes with it.

    After each method exactly one of these holds: `env_call` is the call to run next; `trajectory` is the finished
    episode; or neither, and the policy is to continue `transcript` by at most `max_tokens` tokens.

    What the environment says is appended to the transcript only if there is room for it, so a transcript is never
    longer than the context: a prompt that leaves no room for an answer ends the episode without being appended, and
    so does not reach the trainer either. A conversation that the template refuses fails its episode.

    Attributes:
        env_call: The call into the environment that the flow waits for.
        trajectory: The finished episode, with its transcript.
        transcript: The tokens so far.
        max_tokens: What the policy may sample next.
    """

    def __init__(
        self,
        env: object,
        task: Task,
        limits: Limits,
        episode_id: str,
        *,
        renderer: Renderer,
        context_length: int | None = None,
    ) -> None:
        self.episode_id = episode_id
        self.env_call: EnvCall | None = None
        self.trajectory: Trajectory | None = None
        self.transcript = Transcript()
        self.max_tokens = 0
        self._limits = limits
        self._renderer = renderer
        bounds = [bound for bound in (limits.max_context, context_length) if bound is not None]
        self._context = min(bounds) if bounds else None
        self._tail: tuple[int, ...] | None = None
        self._begun: tuple[int, ...] = ()
        self._rendered = 0
        self._prompt: Prompt | None = None
        self._flow = episode_flow(env, task, limits, episode_id)

    def start(self) -> None:
        """Begin the episode."""
        self._advance(lambda: next(self._flow))

    def env_answered(self, turn: Turn) -> None:
        """Go on with what the environment call returned."""
        self._advance(lambda: self._flow.send(turn))

    def fail(self, error: RolloutError) -> None:
        """Go on after the environment call or the policy failed."""
        self._advance(lambda: self._flow.throw(error))

    def sampled(
        self,
        ids: tuple[int, ...],
        logprobs: tuple[float, ...] | None,
        finish_reason: FinishReason = "stop",
        version: int | None = None,
    ) -> None:
        """Go on with the policy's turn, whose tokens are taken exactly as they are; None means unknown.

        Raises:
            TranscriptError: There is not one finite log-probability per id.
        """
        if finish_reason == "length" and self.max_tokens < self._limits.max_tokens_per_turn:
            finish_reason = "context"
        self.transcript.sample(ids, logprobs, version)
        whole = self._tail = (*self._begun, *ids)
        reply = self._renderer.parse(whole, finish_reason, tools=self._prompt.tools if self._prompt else ())
        # The reply's own message is what was sampled: nothing of it is ever rendered. One that the prompt had begun
        # was counted with the prompt.
        self._rendered += 0 if self._begun else 1
        self._begun = ()
        reply = replace(reply, token_ids=ids, logprobs=logprobs)
        self._advance(lambda: self._flow.send(reply))

    def abandon(self) -> None:
        """Drop the flow where it stands; nothing is called on the environment."""
        self._flow.close()

    def _advance(self, resume: Callable[[], Prompt | EnvCall]) -> None:
        self.env_call = None
        try:
            wanted = resume()
        except StopIteration as end:
            self._finish(end.value)
            return
        if isinstance(wanted, EnvCall):
            self.env_call = wanted
        else:
            self._ask(wanted)

    def _ask(self, prompt: Prompt) -> None:
        self._prompt = prompt
        try:
            ids = self._written(prompt)
        except TemplateError as error:
            # Of no conversation, where the template cannot be used as asked: then that escapes, from here.
            self._renderer.opening([_PLAIN], prompt.tools)
            self.fail(EnvError(f"the conversation cannot be put into tokens: {error}"))
            return
        room = None if self._context is None else self._context - len(self.transcript) - len(ids)
        if room is not None and room < 1:
            length = len(self.transcript) + len(ids)
            self.fail(PromptTooLongError(f"the prompt has {length} tokens and the context takes {self._context}"))
            return
        self.transcript.observe(ids)
        self._rendered = len(prompt.messages)
        per_turn = self._limits.max_tokens_per_turn
        self.max_tokens = per_turn if room is None else min(per_turn, room)

    def _written(self, prompt: Prompt) -> list[int]:
        """What of a prompt is not in the transcript yet, as tokens."""
        if self._tail is not None:
            return self._renderer.bridge(self._tail, prompt.new, prompt.tools)
        ids = self._renderer.opening(prompt.messages, prompt.tools)
        if begun_answer(prompt.messages):
            self._begun = tuple(ids[len(self._renderer.opening(prompt.messages[:-1], prompt.tools)) :])
        return ids

    def _finish(self, trajectory: Trajectory) -> None:
        unseen = trajectory.messages[self._rendered :]
        if self._tail is not None and self._prompt is not None and unseen and trajectory.ending.value != _TOO_LONG:
            ids = self._last_words(self._tail, unseen, self._prompt)
            if self._context is None or len(self.transcript) + len(ids) <= self._context:
                self.transcript.observe(ids)
        self.trajectory = replace(trajectory, transcript=self.transcript)

    def _last_words(self, tail: tuple[int, ...], unseen: Sequence[Message], prompt: Prompt) -> list[int]:
        """What the environment said last, as tokens that nobody goes on from; none where the template refuses it."""
        try:
            return self._renderer.bridge(tail, unseen, prompt.tools, generation_prompt=False)
        except TemplateError:
            return []


_PLAIN: Message = {"role": "user", "content": "x"}
_TOO_LONG = PromptTooLongError.ending
