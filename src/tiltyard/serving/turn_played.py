"""A `TurnEnv` behind a session: each action is one reply of the model."""

from collections.abc import Mapping, Sequence
from typing import Any

from tiltyard.envs.turns import Turns
from tiltyard.errors import ActionRefusedError, EpisodeOverError
from tiltyard.serving.played import Data, Progress, about, answer, text_action
from tiltyard.serving.tool_played import called, listed
from tiltyard.types import Message, Reply, StepResult, Task, ToolCall, Turn

TASK_FIELDS = ("seed", "row_index", "evaluation", "epoch", "messages", "episode_id")


class TurnPlayed:
    """An action is `{"message": text}`, with `tool_calls` (`name`, `arguments`, `id`) where the model made some.

    An MCP client may call one tool at a time with `{"type": "call_tool", …}`. The observation is the content of what
    the environment says next; of several messages it is their texts.
    """

    def __init__(self, env: Any, turns: Turns) -> None:
        self._env = env
        self._name = type(env).__name__
        self._turns = turns
        self._progress = Progress()
        self._over: str | None = "before the first reset"

    def facts(self) -> dict[str, Any]:
        """What the environment says about itself; its tools are those of the episode that was begun last."""
        said = {"env": self._name, **about(self._env), "reset_options": [*TASK_FIELDS, "…"], "actions": "text"}
        tools = list(self._turns.tools())
        return {**said, "tools": tools} if tools else said

    def reset(self, data: Data) -> dict[str, Any]:
        """Begin an episode; what is no field of a task is the data of its row.

        Raises:
            RolloutError: The environment failed.
        """
        row = {name: value for name, value in data.items() if name not in TASK_FIELDS}
        task = Task(
            seed=data.get("seed"),
            row_index=data.get("row_index"),
            evaluation=bool(data.get("evaluation", False)),
            epoch=data.get("epoch", 0),
            messages=tuple(data.get("messages", ())),
            data=row,
        )
        self._over = "after a reset that failed"
        turn = self._turns.start(task)
        self._progress.begin(data)
        prompt = "\n\n".join(str(one["content"]) for one in turn.messages if one.get("role") == "system")
        rest = [message for message in turn.messages if message.get("role") != "system"]
        return self._answered(turn, rest, {**self.facts(), **({"system_prompt": prompt} if prompt else {})})

    def step(self, data: Data) -> dict[str, Any]:
        """Answer with one reply of the model.

        Raises:
            ActionRefusedError: The action is of another form.
            EpisodeOverError: The episode is over, or was never begun.
            RolloutError: The environment failed.
        """
        if data.get("type") == "list_tools":
            return listed(self._turns.tools())
        reply = Reply("", (called(data),)) if data.get("type") == "call_tool" else self._reply(data)
        if self._over is not None:
            raise EpisodeOverError(f"a step {self._over}; reset begins an episode")
        self._progress.steps += 1
        turn = self._turns.reply(reply)
        return self._answered(turn, turn.messages, {"stopped": True} if turn.stopped else {})

    def state(self) -> dict[str, Any]:
        """How far the episode is, and what the environment says about itself."""
        return self._progress.as_data(self.facts())

    def close(self) -> None:
        """Close the environment."""
        self._turns.close()

    def _reply(self, data: Data) -> Reply:
        text = text_action(data, self._name, frozenset({"tool_calls"}))
        calls = []
        for number, call in enumerate(data.get("tool_calls") or ()):
            if not isinstance(call, Mapping):
                errors = [{"type": "dict_type", "loc": ["tool_calls", number], "msg": "Input should be an object"}]
                raise ActionRefusedError("tool_calls is a list of objects", errors)
            made = called({"tool_name": call.get("name"), "arguments": call.get("arguments", {})})
            calls.append(ToolCall(made.name, made.arguments, str(call.get("id", f"call_{number}"))))
        return Reply(text, tuple(calls))

    def _answered(self, turn: Turn, messages: Sequence[Message], own: Mapping[str, Any]) -> dict[str, Any]:
        over = turn.done or turn.truncated or turn.stopped
        self._over = "after the end of the episode" if over else None
        done = turn.done or turn.stopped
        return answer(StepResult(_content(messages), turn.reward, done, dict(turn.info), turn.truncated), own)


def _content(messages: Sequence[Message]) -> Any:
    if len(messages) == 1:
        return messages[0].get("content") or ""
    return "\n\n".join(str(message.get("content") or "") for message in messages)
