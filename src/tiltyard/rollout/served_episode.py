"""One episode with a policy that answers messages, and the tokens where its server gives them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tiltyard.errors import PromptTooLongError, RolloutError, TranscriptError
from tiltyard.rollout.episode import EnvCall, episode_flow
from tiltyard.rollout.jobs import request_seed
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.ledger import Ledger
from tiltyard.tokens.transcript import Transcript
from tiltyard.tools.messages import begun_answer
from tiltyard.types import Prompt, Reply, Task, Turn

NO_IDS = "the policy gave no token ids; a server that can is asked for them with OpenAI(token_ids=...)"
NO_PROMPT_IDS = "the policy gave the ids that it sampled and not those of its prompt"
NO_LOGPROBS = "the policy gave no log-probability for some of the sampled tokens"


class ServedEpisode:
    """An episode flow and the transcript that the policy's replies add up to.

    After each method exactly one of these holds: `env_call` is the call to run next; `trajectory` is the finished
    episode; or `prompt` is to be answered with at most `max_tokens` tokens.

    A transcript is kept while every reply brings the ids of its prompt and of its answer, and every prompt begins
    with all that was seen and sampled before. From the first reply that does not, there is none, and the trajectory
    says why it cannot be trained on.

    Attributes:
        env_call: The call into the environment that the flow waits for.
        prompt: What the policy is to answer.
        max_tokens: What the policy may sample next.
        trajectory: The finished episode.
    """

    def __init__(
        self,
        env: object,
        task: Task,
        limits: Limits,
        episode_id: str,
        *,
        ledger: Ledger,
        seed: int | None = None,
    ) -> None:
        """Set the episode up; nothing is asked of the environment yet.

        Args:
            env: Anything that `as_turns` takes.
            task: What the episode is about.
            limits: Its bounds; `max_context` is kept by the server's count of tokens, where it gives one.
            episode_id: Unique within the run.
            ledger: Counts the prompts and the tokens.
            seed: What the seeds of the prompts derive from; None leaves them unseeded.
        """
        self.episode_id = episode_id
        self.env_call: EnvCall | None = None
        self.prompt: Prompt | None = None
        self.max_tokens = limits.max_tokens_per_turn
        self.trajectory: Trajectory | None = None
        self._limits = limits
        self._ledger = ledger
        self._seed = seed
        self._memo: dict[str, Any] = {}
        self._turns = 0
        self._transcript: Transcript | None = Transcript()
        self._untrainable: str | None = None
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

    def replied(self, reply: Reply) -> None:
        """Go on with the policy's answer."""
        if reply.finish_reason == "length" and self.max_tokens < self._limits.max_tokens_per_turn:
            reply = replace(reply, finish_reason="context")
        if self._transcript is not None:
            self._record(self._transcript, reply)
        if self.prompt is not None and not self._turns and (begun := begun_answer(self.prompt.messages)):
            written = None if reply.written is None else begun + reply.written
            reply = replace(reply, text=begun + reply.text, written=written)
        self._turns += 1
        self._bound(reply.context_tokens)
        self._advance(lambda: self._flow.send(reply))

    def abandon(self) -> None:
        """Drop the flow where it stands; nothing is called on the environment."""
        self._flow.close()

    def _advance(self, resume: Callable[[], Prompt | EnvCall]) -> None:
        self.env_call = self.prompt = None
        try:
            wanted = resume()
        except StopIteration as end:
            self._finish(end.value)
            return
        if isinstance(wanted, EnvCall):
            self.env_call = wanted
        elif self.max_tokens < 1:
            self.fail(PromptTooLongError(f"the {self._limits.max_context} tokens of max_context are used up"))
        else:
            seed = None if self._seed is None else request_seed(self._seed, self.episode_id, self._turns)
            self.prompt = replace(wanted, seed=seed, memo=self._memo)

    def _bound(self, context_tokens: int | None) -> None:
        """Leave the next turn no more than the room that is left."""
        bound = self._limits.max_context
        if bound is not None and context_tokens is not None:
            self.max_tokens = min(self._limits.max_tokens_per_turn, bound - context_tokens)

    def _record(self, transcript: Transcript, reply: Reply) -> None:
        prompt, ids = reply.prompt_ids, reply.token_ids
        if prompt is None or ids is None:
            self._lose(NO_IDS if ids is None else NO_PROMPT_IDS)
            return
        seen = len(transcript)
        if seen:
            self._ledger.prompted(transcript.ids, prompt)
            if list(prompt[:seen]) != transcript.ids:
                self._lose(_fork(transcript, prompt, self._turns))
                return
        transcript.observe(prompt[seen:])
        try:
            transcript.sample(ids, reply.logprobs)
        except TranscriptError as error:
            self._lose(str(error))
            return
        if reply.logprobs is None:
            self._untrainable = NO_LOGPROBS

    def _lose(self, why: str) -> None:
        self._transcript, self._untrainable = None, why

    def _finish(self, trajectory: Trajectory) -> None:
        transcript = self._transcript
        if transcript is not None and self._turns:
            self._ledger.observe(transcript)
        elif not self._turns:
            transcript = None
        self.trajectory = replace(trajectory, transcript=transcript, untrainable=self._untrainable)


def _fork(transcript: Transcript, prompt: tuple[int, ...], turn: int) -> str:
    """Where a prompt left what was seen and sampled before it."""
    at = next((i for i, (old, new) in enumerate(zip(transcript.ids, prompt, strict=False)) if old != new), len(prompt))
    whose = "an answer" if at < len(transcript) and transcript.mask[at] else "a prompt"
    return (
        f"the prompt of turn {turn} does not begin with the tokens before it: they differ at token {at}, inside "
        f"{whose} of an earlier turn; the server's chat template rewrites history"
    )
