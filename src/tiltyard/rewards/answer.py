"""What is scored, and under which names a reward function gets it.

A function asks by the names of its parameters, in any order:

- `completion`: all that the model wrote in its last turn, thinking included, and what a prefill began;
- `prompt`: the messages before it; `messages`: the whole conversation; `trajectory`: a dict of both and of the row;
- `row`: the row as a dict; and every column of the row by its own name;
- `answer`: the column of that name; `question`: that column, or else the text of the last message before the answer;
- `prompts`, `completions` and, beside them, columns: lists of one, as functions over batches take them, which then
  return a list of one;
- `action`, `observation`: what an OpenEnv rubric takes: `action.message`, and `prompt`, `question`, `answer` and `row`
  of the observation.

`**kwargs` gets the columns that are left. Some names mean the same in other projects, where no column has them:
`response` and `solution_str` are the completion; `ground_truth`, `solution`, `target` and `label` the answer.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tiltyard.errors import ConfigurationError
from tiltyard.types import Message

ANSWER, QUESTION = "answer", "question"

OTHER_NAMES: Mapping[str, str] = {
    "response": "completion",
    "solution_str": "completion",
    "ground_truth": ANSWER,
    "solution": ANSWER,
    "target": ANSWER,
    "label": ANSWER,
}
"""What other projects call the completion and the answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to one row.

    Attributes:
        completion: All that the model wrote in its last turn, thinking included, and what a prefill began.
        row: The row that was asked.
        prompt: The messages before the answer.
    """

    completion: str
    row: Mapping[str, Any]
    prompt: tuple[Message, ...] = ()

    @property
    def messages(self) -> list[Message]:
        """The whole conversation, the answer included."""
        return [*self.prompt, {"role": "assistant", "content": self.completion}]

    @property
    def question(self) -> Any:
        """The row's column of that name, else the text of the last message before the answer."""
        if QUESTION in self.row:
            return self.row[QUESTION]
        return self.prompt[-1]["content"] if self.prompt else ""

    def given(self, name: str) -> Any:
        """What a reward function's parameter of this name gets."""
        made = _MADE.get(name)
        if made is not None:
            return made(self)
        if name in self.row:
            return self.row[name]
        other = OTHER_NAMES[name]
        return self.completion if other == "completion" else self.row[other]


_MADE: Mapping[str, Callable[[Answer], Any]] = {
    "completion": lambda answer: answer.completion,
    "prompt": lambda answer: list(answer.prompt),
    "messages": lambda answer: answer.messages,
    "trajectory": lambda answer: {**answer.row, "prompt": list(answer.prompt), "messages": answer.messages},
    "row": lambda answer: dict(answer.row),
    QUESTION: lambda answer: answer.question,
    "prompts": lambda answer: [list(answer.prompt)],
    "completions": lambda answer: [[answer.messages[-1]]],
    "action": lambda answer: SimpleNamespace(message=answer.completion, metadata={}),
    "observation": lambda answer: SimpleNamespace(
        prompt=list(answer.prompt),
        question=answer.question,
        answer=answer.row.get(ANSWER),
        row=dict(answer.row),
        metadata={},
    ),
}

_BATCHED = ("completions", "prompts")


@dataclass(frozen=True, slots=True)
class Arguments:
    """How one function is called.

    Attributes:
        names: The parameters that it takes by name.
        rest: Whether it takes all other columns too.
        batched: Whether it takes lists of one and returns one.
    """

    names: tuple[str, ...]
    rest: bool
    batched: bool

    @classmethod
    def of(cls, function: Callable[..., Any], columns: Sequence[str], name: str) -> "Arguments":
        """Look at a function's parameters.

        Args:
            function: The function.
            columns: What the rows have.
            name: What it is called in an error.

        Raises:
            ConfigurationError: It asks for something that there is not.
        """
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{name} is no function whose parameters can be read: {error}") from error
        names: list[str] = []
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise ConfigurationError(f"{name} takes {parameter.name!r} by position only; it is called by name")
            if _is_known(parameter.name, columns):
                names.append(parameter.name)
            elif parameter.default is parameter.empty:
                raise ConfigurationError(_unknown(parameter.name, columns, name))
        rest = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        return cls(tuple(names), rest, any(known in names for known in _BATCHED))

    def fill(self, answer: Answer) -> dict[str, Any]:
        """The arguments for one answer."""
        given = {name: answer.given(name) for name in self.names}
        if self.rest:
            given = {
                **{name: value for name, value in answer.row.items() if name == QUESTION or name not in _MADE},
                **given,
            }
        if self.batched:
            given = {name: value if name in _BATCHED else [value] for name, value in given.items()}
        return given


def _is_known(name: str, columns: Sequence[str]) -> bool:
    other = OTHER_NAMES.get(name)
    return name in _MADE or name in columns or other == "completion" or (other == ANSWER and ANSWER in columns)


def _unknown(parameter: str, columns: Sequence[str], name: str) -> str:
    known = ", ".join(map(repr, columns))
    advice = " (`columns` renames one)" if parameter in (ANSWER, *OTHER_NAMES) else ""
    return (
        f"{name} asks for {parameter!r}, which the rows do not have; their columns are: {known}{advice}; besides these "
        f"there are: {', '.join(_MADE)}"
    )
