"""Tool calls in text: what is run, what is answered with an error, and what is only text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.errors import ConfigurationError
from tiltyard.tools.parsing import FAMILIES, parse_text


def block(body):
    return f"<tool_call>\n{body}\n</tool_call>"


CALL = '{"name": "f", "arguments": {}}'


def sound(text, finish_reason="stop", **options):
    return [
        (c.name, c.arguments) for c in FAMILIES["hermes"].parse(text, finish_reason, **options).calls if c.error is None
    ]


def errors(text, finish_reason="stop", **options):
    return [c.error for c in FAMILIES["hermes"].parse(text, finish_reason, **options).calls if c.error is not None]


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        (
            '{"name": "f", "arguments": {"text": "close with </tool_call> and {braces} }"}}',
            {"text": "close with </tool_call> and {braces} }"},
        ),
        ('{"name": "f", "arguments": {"a": {"b": {"c": {}}}}}', {"a": {"b": {"c": {}}}}),
        ('{"name": "f", "arguments": {"c": "echo {a,b > out.txt"}}', {"c": "echo {a,b > out.txt"}),
        ('{"name": "f", "arguments": {"c": "a \\"b\\" \\\\"}}', {"c": 'a "b" \\'}),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', {"a": 1}),
        ('{"name": "f", "arguments": null}', {}),
        ('{"name": "f"}', {}),
        ('{"name": "f", "arguments": {"v": "1.10", "t": "  x "}}', {"v": "1.10", "t": "  x "}),
    ],
)
def test_a_sound_call_is_what_the_model_wrote(body, arguments):
    """Tags and braces inside strings end nothing; values keep their type and their spaces (case TP-01, A12, T26)."""
    assert sound(block(body)) == [("f", arguments)]


def test_several_calls_come_in_order_and_the_text_around_them_stays():
    """Two calls on one line are two calls; the tags are no text (case TP-01)."""
    parsed = FAMILIES["hermes"].parse('a <tool_call>{"name":"x"}</tool_call> b <tool_call>{"name":"y"}</tool_call> c')
    assert ([c.name for c in parsed.calls], parsed.text) == (["x", "y"], "a  b  c")


def test_a_block_may_hold_a_list_of_calls():
    """Each element is a call of its own, broken ones included (T24)."""
    text = block('[{"name": "a"}, 7, {"name": "b", "arguments": {"x": 1}}]')
    assert sound(text) == [("a", {}), ("b", {"x": 1})]
    assert len(errors(text)) == 1


@pytest.mark.parametrize("text", ["write `<tool_call>` first", "<tool_call> then", "no tags"])
def test_a_tag_without_json_is_text(text):
    """It is not a call and not an error (case TP-01)."""
    parsed = FAMILIES["hermes"].parse(text)
    assert (parsed.text, parsed.calls) == (text, ())


@pytest.mark.parametrize(
    "body",
    [
        '{"name":"add","arguments":{"a":1}',
        '{"name":"add","arguments":{"a":1,}}',
        "{'name':'add','arguments':{'a':1}}",
        '{"name":"add","arguments":[1,2]}',
        '{"name":"add","arguments":7}',
        '{"arguments":{}}',
        '{"name":5,"arguments":{}}',
        '{"name":"add","parameters":{"a":1}}',
        '{"name":"add","arguments":{"a":"line1\nline2"}}',
        '{{"name":"add","arguments":{}}}',
        '{"name":"add","arguments":{"a":NaN}}',
        '{"name":"add","arguments":"{\\"a\\": "}',
        '{"name":"a"} {"name":"b"}',
        "<function=add><parameter=a>1</parameter></function>",
    ],
)
def test_a_broken_call_is_an_error_and_its_sound_neighbour_runs(body):
    """Nothing is raised, repaired, dropped or run with {} (case TP-04, T22, T23, A10)."""
    text = block(body) + block('{"name": "ok"}')
    assert sound(text) == [("ok", {})]
    (error,) = errors(text)
    assert error


@pytest.mark.parametrize("finish_reason", ["length", "context", "stop"])
@pytest.mark.parametrize(
    "stump",
    [
        '<tool_call>{"name":"write","arguments":{"path":"a.txt","text":"half of the te',
        '<tool_call>{"name":"pay","arguments":{"amount":10}}',
        '<tool_call>{"name":"pay","arguments":{"amount":10}}\n',
    ],
)
def test_a_block_that_is_not_closed_never_runs(stump, finish_reason):
    """A stump is an error whatever the finish reason says, even if its braces close (case TR-02, T25)."""
    assert sound(stump, finish_reason) == []
    assert len(errors(stump, finish_reason)) == 1
    assert sound('<tool_call>{"name":"first"}</tool_call>' + stump) == [("first", {})]


def test_a_call_in_a_code_fence_is_told_what_is_wrong_with_it():
    """It was meant as a call: as text it would pass for the answer. A tag that a code block ends with is text."""
    fenced = block('```json\n{"name": "f", "arguments": {}}\n```')
    [error] = errors(f"{fenced} {block(CALL)}")
    assert error.startswith("no code fence may stand around a call")
    assert sound(f"{fenced} {block(CALL)}") == [("f", {})]
    shown = "A block opens with\n```\n<tool_call>\n```\n[1] says so."
    assert (sound(shown), errors(shown)) == ([], [])


def test_a_call_inside_closed_thinking_is_only_thought():
    """With an answer behind it, it was an example (case TP-03 a)."""
    parsed = FAMILIES["hermes"].parse('<think>such as <tool_call>{"name":"rm"}</tool_call></think>The answer is 4.')
    assert (parsed.text, parsed.calls) == ("The answer is 4.", ())
    assert parsed.reasoning == 'such as <tool_call>{"name":"rm"}</tool_call>'


@pytest.mark.parametrize(
    "text",
    [
        '<think>I need it <tool_call>{"name":"search"}</tool_call></think>',
        '<think>I need it <tool_call>{"name":"search"}</tool_call>',
    ],
)
def test_a_call_that_only_stands_in_the_thinking_is_reported(text):
    """It is not run, and the turn is not taken for an answer (case TP-03 b and c, T25, A13)."""
    assert sound(text) == []
    (error,) = errors(text)
    assert "inside the thinking" in error


def test_thinking_that_the_prompt_opened_ends_at_its_closing_tag():
    """What stands before a lone closing tag was thinking; what stands behind it runs."""
    text = 'hm <tool_call>{"name":"rm"}</tool_call></think>\n<tool_call>{"name":"ls"}</tool_call>'
    assert sound(text) == sound(text, thinking_open=True) == [("ls", {})]
    assert sound('hm <tool_call>{"name":"rm"}</tool_call>', thinking_open=True) == []


def test_thinking_tags_inside_an_argument_are_text():
    """The JSON of a call is read before tags are looked for."""
    assert sound(block('{"name":"write","arguments":{"t":"<think> and </think>"}}')) == [
        ("write", {"t": "<think> and </think>"})
    ]


PIECES = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    '{"name": "f"',
    ', "arguments": {"a": "',
    '"}}',
    "}",
    "[",
    "\\",
    "\n",
    "x",
]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=14), st.sampled_from(["stop", "length"])
)
def test_no_text_breaks_the_parser(pieces, finish_reason):
    """Whatever was sampled comes apart into text, thinking and calls; a sound call has a name and arguments."""
    for call in FAMILIES["hermes"].parse("".join(pieces), finish_reason).calls:
        assert (call.error is None) == (call.arguments is not None)
        assert call.name or call.error


@pytest.mark.parametrize("body", ["[" * 100_000, '{"name": "f", "arguments": {"n": ' + "9" * 5000 + "}}"])
def test_json_that_python_cannot_hold_is_an_error(body):
    """Depth and digits beyond its limits are the model's mistake."""
    assert sound(block(body)) == []
    assert len(errors(block(body))) == 1


def test_plain_text_is_not_touched():
    """Without calls and thinking the spaces stay."""
    assert FAMILIES["hermes"].parse("  7 \n").text == "  7 \n"


def test_an_unknown_family_names_those_that_are_known():
    """The parsers have names."""
    assert parse_text("7", family="qwen").text == "7"
    with pytest.raises(ConfigurationError, match="there are: hermes, qwen, "):
        parse_text("7", family="gpt")
