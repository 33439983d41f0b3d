"""One list of rules, and every family of tool calls under each of them."""

from dataclasses import replace

import pytest
from family_texts import FAMILY_TEXTS, TOOLS, function
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.tools.parsing import CUT_OFF, FAMILIES
from tiltyard.types import ToolCall

NAMES = list(FAMILY_TEXTS)
PAIRS = [(name, texts) for name, texts in FAMILY_TEXTS.items()]


def calls(family, text, finish_reason="stop", **options):
    return FAMILIES[family].parse(text, finish_reason, tools=TOOLS, **options).calls


def sound(family, text, finish_reason="stop", **options):
    return [(c.name, c.arguments) for c in calls(family, text, finish_reason, **options) if c.error is None]


def errors(family, text, finish_reason="stop", **options):
    return [c.error for c in calls(family, text, finish_reason, **options) if c.error is not None]


def every(attribute):
    return [
        pytest.param(name, text, id=f"{name}-{number}")
        for name, texts in FAMILY_TEXTS.items()
        for number, text in enumerate(getattr(texts, attribute))
    ]


def test_every_family_has_its_texts():
    """A family that is added is put under the rules; qwen is hermes by another name."""
    assert set(FAMILIES) - {"qwen"} == set(FAMILY_TEXTS)


@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_read_and_leaves_no_text(name):
    """The markup is no part of the answer."""
    parsed = FAMILIES[name].parse(FAMILY_TEXTS[name].add, tools=TOOLS)
    assert [(c.name, c.arguments, c.error) for c in parsed.calls] == [("add", {"a": 1, "b": 2}, None)]
    assert parsed.text == ""


@pytest.mark.parametrize(("name", "text"), every("others"))
def test_the_family_s_other_ways_of_writing_a_call_are_read(name, text):
    """Versions of a family differ; a completion may open with the call, as the prompt has its header (A16)."""
    assert sound(name, text) == [("add", {"a": 1, "b": 2})]


@pytest.mark.parametrize("name", NAMES)
def test_the_second_call_of_a_turn_is_not_dropped(name):
    """All calls come, in the order in which they were made (TP-01, A15, T25)."""
    assert sound(name, FAMILY_TEXTS[name].two) == [("look", {}), ("say", {"t": "1.10"})]


@pytest.mark.parametrize("name", [name for name, texts in PAIRS if texts.text_around])
def test_text_around_the_calls_stays(name):
    """Before, between and after; without the tags (TP-01)."""
    add = FAMILY_TEXTS[name].add
    parsed = FAMILIES[name].parse(f"one {add} two {add} three", tools=TOOLS)
    assert parsed.text.split() == ["one", "two", "three"]
    assert len(parsed.calls) == 2


@pytest.mark.parametrize(("name", "text"), every("none"))
def test_arguments_that_are_missing_are_none(name, text):
    """A call without arguments is a call with none (A12)."""
    assert sound(name, text) == [("look", {})]
    assert errors(name, text) == []


@pytest.mark.parametrize(("name", "text"), every("broken"))
def test_a_broken_call_is_an_error_and_nothing_runs(name, text):
    """Neither dropped nor run with {} or a guess (TP-04, T22, T23, A15)."""
    assert sound(name, text) == []
    (error,) = errors(name, text)
    assert len(error) > 10


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(name, text, id=f"{name}-{number}")
        for name, texts in PAIRS
        if texts.text_around
        for number, text in enumerate(texts.broken)
    ],
)
def test_a_broken_call_voids_only_itself(name, text):
    """The sound calls before and behind it run (TP-04 mixed, A10)."""
    add = FAMILY_TEXTS[name].add
    assert sound(name, f"{add}\n{text}\n{add}") == [("add", {"a": 1, "b": 2})] * 2
    assert len(errors(name, f"{add}\n{text}\n{add}")) == 1


@pytest.mark.parametrize("finish_reason", ["stop", "length", "context"])
@pytest.mark.parametrize(("name", "text"), every("open_"))
def test_a_call_whose_end_is_missing_never_runs(name, text, finish_reason):
    """Whatever the finish reason says, and even if its braces close (TR-02, T25)."""
    assert sound(name, text, finish_reason) == []
    assert len(errors(name, text, finish_reason)) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_call_cut_anywhere_never_runs(name):
    """Every beginning of a call is refused when sampling was cut; nothing is raised (TR-02)."""
    add = FAMILY_TEXTS[name].add
    assert [cut for cut in range(len(add)) if sound(name, add[:cut], "length")] == []


@pytest.mark.parametrize("name", [name for name, texts in PAIRS if not texts.marks_its_end and name != "mistral"])
def test_a_family_that_marks_no_end_takes_the_last_call_of_a_cut_text_to_be_cut(name):
    """Its braces may close by chance (TR-02)."""
    assert errors(name, FAMILY_TEXTS[name].add, "length") == [CUT_OFF]


@pytest.mark.parametrize(("name", "texts"), [pair for pair in PAIRS if pair[0] != "harmony"])
def test_a_call_inside_closed_thinking_is_only_thought(name, texts):
    """With an answer behind it, it was an example (TP-03 a)."""
    opens, closes = texts.think
    parsed = FAMILIES[name].parse(f"{opens}such as\n{texts.add}\n{closes}It is 4.", tools=TOOLS)
    assert (parsed.text, parsed.calls) == ("It is 4.", ())
    assert texts.add in parsed.reasoning


@pytest.mark.parametrize(("name", "texts"), [pair for pair in PAIRS if pair[0] != "harmony"])
@pytest.mark.parametrize("closed", [True, False])
def test_a_call_that_only_stands_in_the_thinking_is_answered_with_an_error(name, texts, closed):
    """It is not run, and the turn is not taken for an answer (TP-03 b and c, T25, A13)."""
    opens, closes = texts.think
    only_call = f"{texts.add}\n" if name in ("llama3", "react") else f"I need it {texts.add}\n"
    text = opens + only_call + (closes if closed else "")
    assert sound(name, text) == []
    (error,) = errors(name, text)
    assert "inside the thinking" in error
    assert closes in error


@pytest.mark.parametrize(("name", "texts"), [pair for pair in PAIRS if pair[0] != "harmony"])
def test_thinking_that_the_prompt_opened_ends_at_its_closing_tag(name, texts):
    """What stands before it does not run, what stands behind it does."""
    text = f"hm {texts.add}\n{texts.think[1]}\n{texts.add}"
    assert sound(name, text, thinking_open=True) == [("add", {"a": 1, "b": 2})]
    assert sound(name, f"hm {texts.add}", thinking_open=True) == []


@pytest.mark.parametrize(("name", "texts"), PAIRS)
def test_thinking_that_came_apart_is_treated_alike(name, texts):
    """Servers give it in a field of its own (TP-03 d)."""
    assert errors(name, "It is 4.", reasoning=texts.add) == []
    assert sound(name, "", reasoning=texts.add) == []
    assert len(errors(name, "", reasoning=texts.add)) == 1


@pytest.mark.parametrize("closed", [True, False])
def test_a_family_may_be_told_to_run_what_only_stands_in_the_thinking(closed):
    """The option; an example with an answer behind it does not run even so (TP-03)."""
    family = replace(FAMILIES["hermes"], recover_thinking=True)
    text = "<think>I need it " + FAMILY_TEXTS["hermes"].add + ("</think>" if closed else "")
    assert [c.name for c in family.parse(text).calls] == ["add"]
    assert family.parse(f"{text}{'' if closed else '</think>'}It is 4.").calls == ()


@pytest.mark.parametrize(("name", "texts"), [pair for pair in PAIRS if pair[1].mention])
def test_speaking_of_a_tag_is_text(name, texts):
    """It is not a call and not an error (TP-01)."""
    parsed = FAMILIES[name].parse(texts.mention, tools=TOOLS)
    assert (parsed.text, parsed.calls) == (texts.mention, ())


@pytest.mark.parametrize("name", NAMES)
def test_plain_text_is_not_touched(name):
    """Without calls and thinking the spaces stay."""
    parsed = FAMILIES[name].parse('  {"answer": 7} é \n', tools=TOOLS)
    assert (parsed.text, parsed.calls) == ('  {"answer": 7} é \n', ())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "text",
    [
        "1.10",
        "007",
        "true",
        "null",
        "  indented\n",
        "\tx\n\n",
        '"quoted" \\ {braces] }',
        "é 🧪",
        "{}",
        "a </tool_call> b",
        "",
    ],
)
def test_a_string_argument_is_kept_as_it_was_written(name, text):
    """Neither stripped nor turned into a number, whatever it looks like (T26, A14, TP-01)."""
    call = ToolCall("say", {"t": text})
    assert calls(name, FAMILIES[name].render_call(call))[0].arguments == {"t": text}


@pytest.mark.parametrize("name", NAMES)
def test_every_json_value_comes_back_with_its_type(name):
    """Untyped text is typed by the tool's schema, nested values and references too (T26)."""
    point = {"type": "object", "properties": {"x": {"type": "number"}}}
    tool = function(
        "all",
        s={"type": "string"},
        i={"type": "integer"},
        f={"type": "number"},
        b={"type": "boolean"},
        n={"type": "null"},
        l={"type": "array", "items": {"type": "integer"}},
        o={"type": "object"},
        u={"anyOf": [{"type": "integer"}, {"type": "null"}]},
        m={"anyOf": [{"type": "string"}, {"type": "null"}]},
        e={"enum": ["1", 2]},
        r={"$ref": "#/$defs/point"},
    )
    tool["function"]["parameters"]["$defs"] = {"point": point}
    arguments = {
        "s": "5",
        "i": 5,
        "f": 1.5,
        "b": False,
        "n": None,
        "l": [1, 2],
        "o": {"k": "v", "w": [True, None]},
        "u": 3,
        "m": None,
        "e": 2,
        "r": {"x": 0.5},
    }
    family = FAMILIES[name]
    (call,) = family.parse(family.render_call(ToolCall("all", arguments)), tools=[tool]).calls
    assert call.arguments == arguments
    assert list(call.arguments or {}) == list(arguments)


@pytest.mark.parametrize("name", ["qwen3_coder", "glm"])
def test_bare_text_is_a_string_unless_a_schema_says_otherwise(name):
    """A tool or an argument that is not known gives no type (T26)."""
    call = ToolCall("unknown", {"v": "5"})
    text = FAMILIES[name].render_call(call)
    assert FAMILIES[name].parse(text).calls == (call,)


@pytest.mark.parametrize("name", ["qwen3_coder", "glm"])
@pytest.mark.parametrize(("text", "value"), [("True", True), ("false", False), ("five", "five"), ("1,", "1,")])
def test_bare_text_that_does_not_fit_its_type_stays_text(name, text, value):
    """The schema then refuses it by name; booleans may be spelled as in Python."""
    tool = function("f", v={"type": "boolean" if isinstance(value, bool) else "integer"})
    (call,) = FAMILIES[name].parse(FAMILIES[name].render_call(ToolCall("f", {"v": text})), tools=[tool]).calls
    assert call.arguments == {"v": value}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("body", ["[" * 50_000, "9" * 5_000])
def test_values_that_python_cannot_hold_are_errors(name, body):
    """Depth and digits beyond its limits are the model's mistake; nothing is raised."""
    text = FAMILY_TEXTS[name].add.replace("1", body, 1)
    assert [arguments for _, arguments in sound(name, text) if not isinstance((arguments or {})["a"], str)] == []


def test_ids_that_the_model_wrote_are_kept():
    """Kimi's template and Mistral's want them back with the result (TP-05)."""
    assert [c.id for c in calls("kimi", FAMILY_TEXTS["kimi"].two)] == ["functions.look:0", "functions.say:1"]
    assert [c.id for c in calls("mistral", "[TOOL_CALLS]look[CALL_ID]abc123def[ARGS]{}")] == ["abc123def"]


def test_a_name_with_dots_is_kept_whole():
    """Only Kimi's and Harmony's own prefix is taken off."""
    text = FAMILIES["kimi"].render_call(ToolCall("server.search", {}))
    assert sound("kimi", text) == [("server.search", {})]
    assert sound("harmony", FAMILIES["harmony"].render_call(ToolCall("server.search", {}))) == [("server.search", {})]


def test_harmony_s_channels_are_told_apart():
    """Analysis is thinking, unfinished analysis too; final and commentary without a recipient are the answer."""
    family = FAMILIES["harmony"]
    parsed = family.parse(
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>I look."
        "<|end|><|start|>assistant<|channel|>final<|message|>It is 4.<|return|>"
    )
    assert (parsed.reasoning, parsed.text, parsed.calls) == ("hm", "I look.It is 4.", ())
    cut = family.parse('<|channel|>analysis<|message|>call to=functions.rm {"a": 1} and', "length")
    assert (cut.text, cut.calls) == ("", ())


def test_react_calls_behind_an_invented_observation_are_refused():
    """They rest on a result that nobody gave."""
    text = "Action: look\nAction Input: {}\nObservation: a door\nAction: look\nAction Input: {}\nFinal Answer: 4"
    assert sound("react", text) == [("look", {})]
    (error,) = errors("react", text)
    assert "Observation" in error


def test_llama_s_call_behind_prose_is_an_error_and_json_that_calls_nothing_is_an_answer():
    """Nothing marks a call there: one that is meant must not pass for a final answer."""
    text = 'I add them:\n{"name": "add", "parameters": {"a": 1, "b": 2}}'
    assert sound("llama3", text) == []
    assert len(errors("llama3", text)) == 1
    assert calls("llama3", '{"name": "Bob", "age": 5}') == ()


MARKS = sorted({mark for family in FAMILIES.values() for mark in (*family.markers, *family.think)})
PIECES = [
    *MARKS,
    "Action: f",
    "Action Input: ",
    "Observation:",
    "functions.f:0",
    "call:f",
    "<function=f>",
    "<parameter=a>",
    "</parameter>",
    "</function>",
    "to=functions.f",
    '{"name": "f"',
    ', "arguments": {"a": "',
    '"}}',
    "}",
    "[",
    ":",
    "\\",
    "\n",
    "x",
]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=14), st.sampled_from(["stop", "length"])
)
def test_no_text_breaks_a_parser(name, pieces, finish_reason):
    """Whatever was sampled comes apart; a sound call has a name and arguments, a broken one says why."""
    for call in calls(name, "".join(pieces), finish_reason):
        assert (call.error is None) == (call.arguments is not None)
        assert call.name or call.error
