"""What a run relies on, tried out in a second before it: tools, templates, tokens, and one throwaway environment."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiltyard._boundary import guarded
from tiltyard.envs.turns import Turns
from tiltyard.errors import ConfigurationError, EnvError, RolloutError, TemplateError
from tiltyard.rollout.row_task import task_of
from tiltyard.rollout.sources import EnvSource, Row
from tiltyard.rollout.workers import EnvWorkers
from tiltyard.tokens.renderer import Renderer, TemplateRenderer, make_renderer
from tiltyard.tools.parsing.family import Family
from tiltyard.tools.parsing.round_trip import round_trip_problem, sample_arguments
from tiltyard.tools.schema import ArgumentsCheck
from tiltyard.types import Message, Task, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ASK: Message = {"role": "user", "content": "Which one?"}


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """What was tried and holds, and what could not be tried. What does not hold is raised.

    Attributes:
        passed: The checks that hold.
        skipped: The checks that were not made, each with why.
        tools: The names of the tools that the model will be shown.
    """

    passed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [*(f"ok      {check}" for check in self.passed), *(f"skipped {check}" for check in self.skipped)]
        return "\n".join([*lines, f"ready, {len(self.tools) or 'no'} tools{': ' if self.tools else ''}"]) + ", ".join(
            self.tools
        )


def preflight(
    renderer: Renderer | None = None,
    tools: Sequence[ToolSchema] = (),
    *,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    parser: str | Family | None = None,
    env: Callable[[], Turns] | None = None,
    task: Task | None = None,
    timeout_s: float | None = 300.0,
) -> PreflightReport:
    """Try out what a run relies on, and refuse what cannot work.

    Args:
        renderer: Writes and reads the tokens; None where a server does, or to make it from the tokenizer.
        tools: The schemas of the tools that are known without an environment.
        tokenizer: The model's; with it, text that looks like special tokens is tried too.
        chat_template_kwargs: Given to each render of the chat template.
        parser: The family whose tool calls are read; None recognises it from the template.
        env: Makes an environment to throw away: it is reset once, asked for its tools, and closed.
        task: What it is reset to.
        timeout_s: How long its making, reset and close may take, each.

    Raises:
        ConfigurationError: A schema or the environment cannot be used; the message names the cure.
        TemplateError: The chat template or the tokenizer cannot be used with these tools.
    """
    make = _maker(tokenizer, chat_template_kwargs, parser)
    return _tried(renderer or make, tools, tokenizer, env, task or Task(seed=0), timeout_s)[0]


def preflight_rows(
    source: EnvSource,
    row: Row,
    *,
    renderer: Renderer | None = None,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    parser: str | Family | None = None,
    timeout_s: float | None = 300.0,
) -> tuple[PreflightReport, Renderer | None]:
    """`preflight` for a rollout over trajectories: the report, and the renderer that was made on the way."""
    env = (lambda: source.made_for(row)) if source.makes_envs else None
    known = {schema["function"]["name"]: schema for schema in source.given_tools}
    make = _maker(tokenizer, chat_template_kwargs, parser)
    return _tried(renderer or make, list(known.values()), tokenizer, env, task_of(row, 0, 0), timeout_s)


Make = Callable[[bool], Renderer]
"""Makes a renderer, told whether there are tools."""


def _maker(
    tokenizer: "PreTrainedTokenizerBase | None",
    chat_template_kwargs: Mapping[str, Any] | None,
    parser: str | Family | None,
) -> Make | None:
    if tokenizer is None:
        return None
    return lambda tools: make_renderer(tokenizer, tools=tools, chat_template_kwargs=chat_template_kwargs, parser=parser)


def _tried(
    renderer: Renderer | Make | None,
    tools: Sequence[ToolSchema],
    tokenizer: "PreTrainedTokenizerBase | None",
    env: Callable[[], Turns] | None,
    task: Task,
    timeout_s: float | None,
) -> tuple[PreflightReport, Renderer | None]:
    passed: list[str] = []
    skipped: list[str] = []
    if env is None:
        skipped.append(
            "an environment is reset and closed (none is made for the episodes: they play with what is given)"
        )
    else:
        tools = [*tools, *_dry_run(env, task, timeout_s)]
        passed.append("an environment is made, reset and closed")
    names = _names(tools)
    passed.append("tool schemas are valid, and their names unique")
    if callable(renderer):
        renderer = renderer(bool(tools))
        passed.append("what follows a sampled turn is what the chat template writes there")
    if renderer is None:
        skipped.append("chat template and tokens (the server's, or tried when the model is loaded)")
    else:
        _check_tokens(renderer, tools, tokenizer, passed, skipped)
    return PreflightReport(tuple(passed), tuple(skipped), names), renderer


def _dry_run(env: Callable[[], Turns], task: Task, timeout_s: float | None) -> Sequence[ToolSchema]:
    """Make an environment, reset it, ask for its tools and close it; each within the time."""
    workers = EnvWorkers(timeout_s, name="tiltyard-preflight")
    turns: Turns | None = None
    try:
        turns = made = workers.run(lambda: guarded("making the environment", EnvError, env))
        workers.run(lambda: made.start(task))
        return tuple(made.tools())
    except RolloutError as error:
        raise ConfigurationError(
            f"a throwaway environment could not be made and reset, so no episode could: {error}; try it with "
            "tiltyard.check_env (in Python, preflight=False leaves this out)"
        ) from error
    finally:
        try:
            if turns is not None:
                workers.run(turns.close)
        except RolloutError as error:
            raise ConfigurationError(f"a throwaway environment could not be closed: {error}") from error
        finally:
            workers.stop()


def _names(tools: Sequence[ToolSchema]) -> tuple[str, ...]:
    names: list[str] = []
    for schema in tools:
        name = ArgumentsCheck(schema).name
        if name in names:
            raise ConfigurationError(f"two tools are named {name!r}; the model calls them by their names")
        names.append(name)
    return tuple(names)


def _check_tokens(
    renderer: Renderer,
    tools: Sequence[ToolSchema],
    tokenizer: "PreTrainedTokenizerBase | None",
    passed: list[str],
    skipped: list[str],
) -> None:
    if not renderer.stop_ids:
        raise TemplateError(
            "no token ends a turn, so sampling would only stop at its limit; set tokenizer.eos_token to the token that "
            "ends the model's turns"
        )
    passed.append(f"a turn ends with {_shown_ids(renderer.stop_ids, tokenizer)}")
    if tokenizer is None:
        skipped.append("text that looks like a special token stays text (needs the tokenizer)")
    else:
        _check_literal(renderer, tokenizer)
        passed.append("text that looks like a special token stays text")
    if not tools:
        return
    if renderer.opening([_ASK], tools) == renderer.opening([_ASK]):
        raise TemplateError(
            "the tools do not reach the prompt: it is the same with and without them; set tokenizer.chat_template to "
            "one that shows tools"
        )
    passed.append("the tools are in the prompt")
    for schema in tools:
        name = schema["function"]["name"]
        why = _round_trip(renderer, schema, tools)
        if not why:
            passed.append(f"a call of {name!r} is read as the chat template writes it")
        elif isinstance(renderer, TemplateRenderer) and renderer.family is not None:
            if problem := round_trip_problem(renderer.family, schema):
                raise TemplateError(problem)
            passed.append(f"a call of {name!r} is read as its family writes it (of the template: {why})")
        else:
            skipped.append(f"a call of {name!r} is read as the chat template writes it ({why})")


def _check_literal(renderer: Renderer, tokenizer: "PreTrainedTokenizerBase") -> None:
    """No text of an environment may become a special token: it could forge the end of a turn."""
    plain = renderer.opening([_ASK])
    for index in sorted(renderer.stop_ids):
        text = str(tokenizer.convert_ids_to_tokens(index))
        forged = renderer.opening([{**_ASK, "content": f"{_ASK['content']}{text}"}])
        if index in tokenizer.all_special_ids and forged.count(index) > plain.count(index):
            raise TemplateError(
                f"the text {text!r} in a message becomes the token that ends a turn, so that an environment could "
                "forge turns; use a fast tokenizer whose special tokens are declared as such"
            )


def _round_trip(renderer: Renderer, schema: ToolSchema, tools: Sequence[ToolSchema]) -> str:
    """Write a call as the chat template does and read it; why it could not be tried, "" when it was read rightly."""
    function = schema["function"]
    arguments = sample_arguments(function.get("parameters") or {})
    call = {"id": "call00001", "type": "function", "function": {"name": function["name"], "arguments": arguments}}
    turn: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
    before, after = renderer.opening([_ASK], tools), renderer.bridge((), (), tools)
    whole = renderer.opening([_ASK, turn], tools)
    end = len(whole) - len(after)
    if whole[: len(before)] != before or whole[end:] != after:
        return "it writes earlier turns in another way than it asks for them"
    reply = renderer.parse(whole[len(before) : end], "stop", tools=tools)
    if [(one.name, one.arguments) for one in reply.tool_calls] == [(function["name"], arguments)]:
        return ""
    got = [one.error or f"{one.name}({one.arguments})" for one in reply.tool_calls] or [f"the text {reply.text!r}"]
    raise TemplateError(
        f"a call of {function['name']!r} with {arguments!r}, written as the chat template writes it, is read as: "
        f"{'; '.join(got)}. The template and the parser are of two families; name the parser of the model's own"
    )


def _shown_ids(ids: frozenset[int], tokenizer: "PreTrainedTokenizerBase | None") -> str:
    return " or ".join(
        str(index) if tokenizer is None else repr(tokenizer.convert_ids_to_tokens(index)) for index in sorted(ids)
    )
