"""The prompt of a row: what a template may say, and what rows without one must have."""

import pytest

from tiltyard import ConfigurationError
from tiltyard.rows import load_rows
from tiltyard.rows.prompt import Prompts
from tiltyard.rows.template import PromptTemplate

COLUMNS = ("nums", "target")


def prompt(template, row, columns=COLUMNS):
    return PromptTemplate.read(template, columns).messages(row)


def test_messages_are_filled_in_in_the_order_of_their_numbers():
    """The order in the file does not matter; the columns stand in braces."""
    template = {"user_1": "Make {target} of {nums}.", "system_0": "Be brief.", "assistant_2": "<think>"}
    assert prompt(template, {"nums": [1, 2], "target": 3}) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Make 3 of [1, 2]."},
        {"role": "assistant", "content": "<think>"},
    ]


def test_numbers_are_numbers():
    """`user_10` follows `user_9`."""
    template = {f"{'user' if number % 2 else 'assistant'}_{number}": str(number) for number in range(12, 0, -1)}
    del template["assistant_12"]
    assert [message["content"] for message in prompt(template, {})] == [str(number) for number in range(1, 12)]


def test_braces_of_a_row_stay_what_they_are():
    """A row is data: what looks like a column in it is not filled in."""
    row = {"nums": "{target} and {{x}} and {0.__class__}", "target": 3}
    assert prompt({"user_0": "{nums}"}, row)[0]["content"] == row["nums"]


def test_braces_of_the_template_are_written_twice():
    """As everywhere in Python."""
    assert prompt({"user_0": '{{"x": {target}}}'}, {"target": 3})[0]["content"] == '{"x": 3}'


def test_values_are_written_as_a_reader_expects():
    """Text as it is, lists and mappings as JSON, None as nothing."""
    row = {"a": "é", "b": ["é", 1], "c": None, "d": 1.5}
    assert prompt({"user_0": "{a}|{b}|{c}|{d}"}, row, tuple(row))[0]["content"] == 'é|["é", 1]||1.5'


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"user_0": "{num}"}, r"\{num\}, which the rows does not have; its columns are: 'nums', 'target'"),
        ({"user": "x"}, "a role and a place"),
        ({0: "x"}, "a role and a place"),
        ({"user_0": 3}, "user_0 of a prompt_template must be text, got 3"),
        (["x"], "maps a role and a place to a text"),
        ({"tool_0": "x"}, "a role and a place"),
        ({"user_0": "{"}, "written twice"),
        ({"user_0": "{}"}, "is no column's name"),
        ({"user_0": "{nums[0]}"}, "is no column's name"),
        ({"user_0": "{nums!r}"}, "is no column's name"),
        ({"system_0": "x"}, "must end with a message of the user"),
        ({"user_0": "x", "assistant_1": "y", "assistant_2": "z"}, "must end with a message of the user"),
        ({"user_0": "x", "user_00": "y"}, "two messages with the number 0"),
    ],
)
def test_a_template_that_cannot_be_filled_in_is_refused_before_the_run(template, message):
    """The error has the columns that there are."""
    with pytest.raises(ConfigurationError, match=message):
        PromptTemplate.read(template, COLUMNS)


def asked(row):
    rows = load_rows([row])
    return Prompts.of(rows, None).messages(rows[0], "row 0")


def test_rows_without_a_template_have_their_prompt_in_a_column():
    """`messages`, `prompt` or `question`; text is what the user says."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1"}]
    assert asked({"question": "1+1", "answer": 2}) == messages[1:]
    assert asked({"question": "unused", "prompt": messages}) == messages
    assert asked({"messages": messages, "prompt": "unused"}) == messages


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "1+1"}, r"has no column 'messages', 'prompt' or 'question' to ask; its columns are: 'text'"),
        ({"question": None}, "must be text, or a list of messages"),
        ({"question": ""}, "must be text, or a list of messages"),
        ({"prompt": [{"role": "user"}]}, "must be text, or a list of messages"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
            "ends with an answer",
        ),
    ],
)
def test_a_column_that_is_no_prompt_is_refused(row, message):
    """An answer that stands in the conversation is not shown to the model that is to give it."""
    with pytest.raises(ConfigurationError, match=message):
        asked(row)
