"""The values that pass between environments, policies and the loop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Message = dict[str, Any]
"""One chat message in OpenAI form: `role`, `content`, and where they apply `tool_calls`, `tool_call_id`, `name`."""

ToolSchema = dict[str, Any]
"""An OpenAI function-call schema: `{"type": "function", "function": {"name", "description", "parameters"}}`."""

FinishReason = Literal["stop", "length", "context"]
"""Why sampling stopped: the model ended its turn, the per-turn token limit, or no room left in the context."""


@dataclass(slots=True)
class StepResult:
    """What a tool-call environment returns from `reset` and `step`.

    Attributes:
        observation: Text for the model.
        reward: The step's reward; None means "not scored", which is never the same as 0.
        done: The episode is over.
        info: Anything else; never shown to the model.
        truncated: Over for a reason outside the task. With `done` as well the episode is terminal.
    """

    observation: str = ""
    reward: float | None = 0.0
    done: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call that the model made.

    Attributes:
        name: The tool's name as the model wrote it; empty when it could not be read.
        arguments: The parsed arguments; None when they could not be parsed, and then `error` says why.
        id: Unique within the trajectory; every call id gets exactly one result.
        error: Why the call cannot run, as text for the model; None for a sound call.
        raw: The arguments as the model wrote them, where they came as text; the record keeps them so.
    """

    name: str
    arguments: dict[str, Any] | None
    id: str = ""
    error: str | None = None
    raw: str | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """What one episode is about; every member of a group gets an equal one.

    Attributes:
        seed: Passed to the environment's reset; None leaves it to the environment.
        row_index: The data row, for environments with a `dataset_size`; None for the others.
        evaluation: True serves the held-out split.
        epoch: How many times the rows were gone through before; part of the group's identity.
        messages: Messages that open the conversation before the first observation.
        data: Further fields of the task's row, given to `Env.reset`; never shown to the model by the loop.
    """

    seed: int | None = None
    row_index: int | None = None
    evaluation: bool = False
    epoch: int = 0
    messages: tuple[Message, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """What an environment says: the messages to add to the conversation, and where the episode stands.

    Attributes:
        messages: Added to the conversation as they are; may be empty when the episode is over.
        reward: This turn's reward; None means "not scored".
        done: The task is over.
        truncated: Over for a reason outside the task.
        stopped: The model ended the episode: it answered without a call where only calls act.
        info: Never shown to the model. `success` (bool), where present, is what evaluation counts.
    """

    messages: tuple[Message, ...] = ()
    reward: float | None = 0.0
    done: bool = False
    truncated: bool = False
    stopped: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the loop asks the policy to answer.

    Attributes:
        messages: The whole conversation so far: a live view, good until the reply is sent. Copy it to keep it.
        new: The messages that came since the policy's last reply (all of them at first).
        tools: The tools that the model may call; empty for a text environment.
        seed: What the randomness of the answer derives from, for policies that can take one; None = unseeded.
        memo: What a policy keeps from one turn of this episode to the next; None where nothing can be kept.
    """

    messages: Sequence[Message]
    new: Sequence[Message]
    tools: Sequence[ToolSchema] = ()
    seed: int | None = None
    memo: dict[str, Any] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """What the policy answered.

    Attributes:
        text: The visible answer, without thinking and without tool-call markup.
        tool_calls: The calls in the order in which they were made, malformed ones included.
        reasoning: The thinking, where the model's family marks it; "" otherwise.
        finish_reason: Why sampling stopped.
        token_ids: The sampled ids; None when the policy is a server that does not give them.
        logprobs: One per sampled id; None when unknown.
        prompt_ids: The ids that the model saw, those of the whole prompt; None when unknown, or where the driver
            wrote them itself.
        context_tokens: How many tokens prompt and answer have by the server's count; None when unknown.
        sampled_tokens: How many of them are the answer's, thinking included; None when unknown.
        written: All that was written, as it was: the thinking and the calls with their markup, and what the prompt had
            begun of the answer; None when unknown.
    """

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    finish_reason: FinishReason = "stop"
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    prompt_ids: tuple[int, ...] | None = None
    context_tokens: int | None = None
    sampled_tokens: int | None = None
    written: str | None = None
