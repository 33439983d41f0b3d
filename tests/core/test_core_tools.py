"""Tools: what a function becomes, what the manager runs, and what it answers instead."""

from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall

from tiltyard.envs.tool import EnvTool
from tiltyard.errors import ConfigurationError, LostSessionError, ToolCrashError, ToolError
from tiltyard.testing.faulty import FaultyToolEnv
from tiltyard.testing.guess import GuessToolEnv
from tiltyard.tools.base import tool
from tiltyard.tools.manager import ToolManager
from tiltyard.tools.messages import arguments_text, assistant_message, parse_call
from tiltyard.types import Reply, StepResult, ToolCall


@tool
def search(
    query: str,
    limit: int = 10,
    order: Literal["new", "old"] = "new",
    tags: list[str] | None = None,
    extra: dict[str, float] | None = None,
    raw: Any = None,
) -> str:
    """Search the archive
    for text.

    It is slow.

    Args:
        query: What to look for,
            in words.
        limit (int): How many results.
        order: Which come first.
        tags: Only these.
        extra: Weights: by name.
        raw: Anything.

    Returns:
        The results.
    """
    return f"{query!r} {limit} {order} {tags}"


def manager(*tools):
    return ToolManager([search, *tools])


def test_a_function_becomes_a_schema():
    """Types give the schema, defaults make parameters optional, the docstring describes."""
    function = search.tool_info()["function"]
    assert (function["name"], function["description"]) == ("search", "Search the archive for text.")
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for, in words."},
            "limit": {"type": "integer", "description": "How many results.", "default": 10},
            "order": {"enum": ["new", "old"], "description": "Which come first.", "default": "new"},
            "tags": {
                "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                "description": "Only these.",
                "default": None,
            },
            "extra": {
                "anyOf": [{"type": "object", "additionalProperties": {"type": "number"}}, {"type": "null"}],
                "description": "Weights: by name.",
                "default": None,
            },
            "raw": {"description": "Anything.", "default": None},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def no_docstring(x: int) -> str:
    return ""


def no_hint(x) -> str:
    """Do.

    Args:
        x: A thing.
    """
    return ""


def no_description(x: int) -> str:
    """Do."""
    return ""


def not_json(x: bytes) -> str:
    """Do.

    Args:
        x: A thing.
    """
    return ""


def star(*x: int) -> str:
    """Do.

    Args:
        x: A thing.
    """
    return ""


def odd_default(x: str = Path()) -> str:
    """Do.

    Args:
        x: A thing.
    """
    return ""


def unknown_type(x: "Nothing") -> str:  # noqa: F821
    """Do.

    Args:
        x: A thing.
    """
    return ""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_docstring, "'no_docstring' has no docstring"),
        (no_hint, "'x' of tool 'no_hint' has no type hint"),
        (no_description, "'x' of tool 'no_description' is not described"),
        (not_json, "JSON cannot express"),
        (star, "must be a named parameter"),
        (odd_default, r"'x' of tool 'odd_default' has the default .*Path.*JSON cannot express"),
        (unknown_type, "the types of tool 'unknown_type' cannot be read: name 'Nothing' is not defined"),
        (partial(no_hint, x=1), "the types of tool 'partial' cannot be read"),
        (GuessToolEnv, "from a function or a method, got <class"),
        (5, "from a function or a method, got 5"),
    ],
)
def test_a_function_that_says_too_little_is_refused(function, message):
    """The model would read the gap; the error names the function and the parameter."""
    with pytest.raises(ConfigurationError, match=message):
        tool(function)


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("search", {"query": "x", "limit": 2}),
        {"id": "1", "type": "function", "function": {"name": "search", "arguments": '{"query": "x", "limit": 2}'}},
        {"function": {"name": "search", "arguments": {"query": "x", "limit": 2}}},
        {"name": "search", "arguments": {"query": "x", "limit": 2}},
        ChatCompletionMessageFunctionToolCall.model_validate(
            {"id": "1", "type": "function", "function": {"name": "search", "arguments": '{"query": "x", "limit": 2}'}}
        ),
    ],
)
def test_a_call_may_be_ours_or_in_openai_form(call):
    """The arguments are a dict or a JSON string; the tool always receives a dict."""
    assert manager()(call) == "'x' 2 new None"


def test_a_plain_tool_is_a_step_of_reward_0_that_is_never_done():
    """`step` gives what the loop needs."""
    result = manager().step(ToolCall("search", {"query": "x"}))
    assert (result.reward, result.done, result.truncated, result.info) == (0.0, False, False, {})


def test_the_reward_and_the_end_of_an_environment_come_through_the_manager():
    """`done` reaches the loop as what it is, not as text (T1)."""
    env = GuessToolEnv(highest=1)
    env.reset()
    result = ToolManager(EnvTool.from_env(env)).step(ToolCall("guess", {"number": 1}))
    assert (result.observation, result.reward, result.done) == ("Correct!", 1.0, True)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (ToolCall("serch", {}), "unknown_tool", "Error: there is no tool 'serch'; the tools are: search"),
        (
            {"name": "search", "arguments": '{"query": '},
            "unreadable_call",
            "Error: the arguments of 'search' are not valid JSON",
        ),
        ({"name": "search", "arguments": '{"query": NaN}'}, "unreadable_call", "NaN is not JSON"),
        ({"name": "search", "arguments": "[1, 2]"}, "unreadable_call", "must be one JSON object, got [1, 2]"),
        ({"name": "search", "arguments": '"{}"'}, "unreadable_call", "must be one JSON object, got '{}'"),
        ({"name": "search", "arguments": 7}, "unreadable_call", "must be one JSON object, got 7"),
        ({"name": 5, "arguments": {}}, "unreadable_call", "needs its tool's name as text in 'name', got 5"),
        ("search", "unreadable_call", "a tool call must be a JSON object, got 'search'"),
        (None, "unreadable_call", "a tool call must be a JSON object, got None"),
        ({"function": "search"}, "unreadable_call", "a tool call must be a JSON object, got 'search'"),
        (ToolCall("search", {}), "bad_arguments", "'query' is a required property"),
        (ToolCall("search", {"query": 1.1}), "bad_arguments", "['query']: 1.1 is not of type 'string'"),
        (ToolCall("search", {"query": "x", "limit": "2"}), "bad_arguments", "['limit']: '2' is not of type 'integer'"),
        (ToolCall("search", {"query": "x", "order": "up"}), "bad_arguments", "['order']: 'up' is not one of"),
        (ToolCall("search", {"query": "x", "lmit": 2}), "bad_arguments", "'lmit' was unexpected"),
        (ToolCall("", None, error="the call is not JSON"), "unreadable_call", "Error: the call is not JSON"),
    ],
)
def test_a_call_that_cannot_run_is_answered_with_what_is_wrong(call, kind, text):
    """Nothing is run with guessed arguments, and the text says what to write (T22, T23, T26)."""
    result = manager().step(call)
    assert text in result.observation
    assert (result.info, result.done) == ({"tool_error": kind}, False)


@pytest.mark.parametrize(
    "call", [{"name": "now"}, {"name": "now", "arguments": None}, {"name": "now", "arguments": ""}]
)
def test_a_call_without_arguments_has_none(call):
    """A missing `arguments`, null and the empty string are {} (A12)."""

    def now() -> str:
        """Tell the time."""
        return "noon"

    assert manager(tool(now))(call) == "noon"


@pytest.mark.parametrize("text", ["1.10", "  indented\n", "true", "null", '{"a": 1}', ""])
def test_text_stays_the_text_that_it_was(text):
    """The schema says string, so it is one: not stripped, not a number, not JSON (T26, A14)."""
    got = []

    def keep(text: str) -> str:
        """Keep.

        Args:
            text: What to keep.
        """
        got.append(text)
        return ""

    manager(tool(keep))(ToolCall("keep", {"text": text}))
    assert got == [text]


def test_a_tool_error_is_text_for_the_model():
    """The model made a mistake that only the tool could see."""

    def fetch(page: int) -> str:
        """Fetch.

        Args:
            page: Which.
        """
        raise ToolError(f"there is no page {page}; the last is 3")

    result = manager(tool(fetch)).step(ToolCall("fetch", {"page": 9}))
    assert (result.observation, result.info) == ("Error: there is no page 9; the last is 3", {"tool_error": "failed"})


def test_a_crash_of_a_tool_is_the_episodes_and_keeps_its_cause():
    """It is no observation: the model could not help it."""

    def crash() -> str:
        """Crash."""
        raise KeyError("missing")

    with pytest.raises(ToolCrashError, match="tool 'crash' raised KeyError") as caught:
        manager(tool(crash)).step(ToolCall("crash", {}))
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(LostSessionError):
        ToolManager(EnvTool.from_env(FaultyToolEnv("lost"))).step(ToolCall("act", {}))


def test_what_a_tool_returns_becomes_text():
    """None is "", data is JSON with its keys in order, bytes are decoded (case OB-01)."""

    def give(what: str) -> Any:
        """Give.

        Args:
            what: Which.
        """
        return {"none": None, "data": {"b": [1, 2], "a": "é"}, "bytes": b"\xff\x00ok", "seven": 7}[what]

    give_text = manager(tool(give))
    texts = [give_text(ToolCall("give", {"what": what})) for what in ("none", "data", "bytes", "seven")]
    assert texts == ["", '{"b": [1, 2], "a": "é"}', "\ufffd\x00ok", "7"]


def test_a_tool_that_returns_a_step_of_an_environment_fails_the_episode():
    """Its reward would be lost, and the model would read it."""

    def submit() -> StepResult:
        """Hand in."""
        return StepResult("right", 1.0, done=True)

    class Submit:
        def __call__(self, tool_name, arguments):
            return StepResult("right", 1.0, done=True)

        def tool_info(self):
            return {"type": "function", "function": {"name": "submit"}}

    for one in (tool(submit), Submit()):
        with pytest.raises(ToolCrashError, match=r"'submit' returned a StepResult.*Make it a step of an Env"):
            ToolManager([one]).step(ToolCall("submit", {}))


def test_names_are_unique_and_unregister_says_what_there_is():
    """The prompt and the registry have one source of names (T2)."""
    tools = manager()
    assert tools.names == [schema["function"]["name"] for schema in tools.tool_infos()]
    with pytest.raises(ConfigurationError, match="'search' is registered already"):
        tools.register(search)
    with pytest.raises(ConfigurationError, match="there is no tool 'find'; there are: search"):
        tools.unregister("find")
    other = tools.copy()
    assert other.unregister("search") is search
    assert (tools.names, other.names) == (["search"], [])


def test_a_manager_takes_a_list_a_dict_or_nothing():
    """The keys of a dict are the tools' own names."""
    assert (ToolManager().names, ToolManager({"search": search}).names) == ([], ["search"])
    with pytest.raises(ConfigurationError, match="'find' holds the tool 'search'"):
        ToolManager({"find": search})
    with pytest.raises(ConfigurationError, match="make one from a function"):
        ToolManager([no_docstring])
    for one in (search, GuessToolEnv()):
        with pytest.raises(ConfigurationError, match=r"a list of tools.*got .*from_env\(env\)"):
            ToolManager(one)


@pytest.mark.parametrize("parameters", [{"type": "array"}, {"type": "objekt"}, {"properties": 3}])
def test_a_schema_that_is_none_is_refused_when_it_is_registered(parameters):
    """Not at the first call of the model."""

    class Bad:
        def __call__(self, tool_name, arguments):
            return ""

        def tool_info(self):
            return {"type": "function", "function": {"name": "bad", "parameters": parameters}}

    with pytest.raises(ConfigurationError, match="'bad'"):
        ToolManager([Bad()])


def test_a_schema_that_breaks_when_it_is_used_fails_the_episode():
    """A reference that leads out of the schema is not fetched."""

    class Lost:
        def __call__(self, tool_name, arguments):
            return "ran"

        def tool_info(self):
            parameters = {
                "type": "object",
                "properties": {"x": {"$ref": "https://example.com/x.json"}, "y": {"$ref": "#/$defs/y"}},
                "$defs": {"y": {"type": "integer"}},
            }
            return {"type": "function", "function": {"name": "lost", "parameters": parameters}}

    tools = ToolManager([Lost()])
    assert tools(ToolCall("lost", {"y": 1})) == "ran"
    assert "'1' is not of type 'integer'" in tools(ToolCall("lost", {"y": "1"}))
    with pytest.raises(ToolCrashError, match="the schema of tool 'lost'"):
        tools(ToolCall("lost", {"x": 1}))


def test_a_recorded_call_has_the_arguments_as_the_model_wrote_them():
    """Key order, spacing and non-ASCII text survive; a dict becomes JSON (case TP-06)."""
    as_text = '{"b": "\\u00e9",  "a": 1}'
    calls = (
        parse_call({"id": "x", "function": {"name": "f", "arguments": as_text}}),
        ToolCall("g", {"b": "é", "a": 1}, "y"),
    )
    message = assistant_message(Reply("", calls))
    assert [c["function"]["arguments"] for c in message["tool_calls"]] == [as_text, '{"b": "é", "a": 1}']
    assert calls[0].arguments == {"b": "é", "a": 1}


@pytest.mark.parametrize("arguments", ['{"text": "a\\ud83e"}', {"text": "a\ud83e"}, '{"text": "a\ud83e"}'])
def test_half_a_surrogate_pair_in_an_argument_is_a_replacement_character(arguments):
    """A model can spell it and no file can hold it: the tool that writes it would crash for the model's slip."""
    call = parse_call({"name": "save", "arguments": arguments})
    assert (call.arguments, call.error) == ({"text": "a\ufffd"}, None)
    assert arguments_text(call).isascii() or "\ufffd" in arguments_text(call)


@pytest.mark.parametrize("arguments", ['{"number": 1e999}', {"number": [float("inf")]}, {"number": float("nan")}])
def test_a_number_that_is_not_finite_is_no_argument(arguments):
    """JSON has none, however it is spelled."""
    call = parse_call({"name": "save", "arguments": arguments})
    assert call.arguments is None
    assert call.error.startswith("the arguments of 'save' are not valid JSON")
