"""Rows for SFT: the forms of the field, what is left out and counted, and what is refused."""

import pytest

from tiltyard.errors import ConfigurationError, TemplateError
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.train.dataset_env import DatasetEnv
from tiltyard.train.examples import RowSettings

CONVERSATION = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
TWO_ANSWERS = [*CONVERSATION, {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}]


def env(*rows, tokenizer=None, **options):
    options = {"objective": "sft", "train_test_split": 1, **options}
    return DatasetEnv(list(rows), tokenizer or byte_tokenizer(), **options)


def learned(made, index=0):
    example = made.train[index]
    return made.encoder.encoder.decode([i for i, on in zip(example.ids, example.mask, strict=True) if on])


@pytest.mark.parametrize(
    "row",
    [
        {"messages": CONVERSATION},
        {"prompt": "q", "response": "a"},
        {"prompt": "q", "completion": "a"},
        {"prompt": CONVERSATION[:1], "completion": CONVERSATION[1:]},
        {"prompt": CONVERSATION[:1], "response": "a"},
        {"prompt": "q", "response": CONVERSATION[1:]},
        {"prompt": "q", "response": CONVERSATION[1]},
    ],
)
def test_every_form_of_a_row_is_the_same_example(row):
    """Messages, texts, and either with the other: one question, one answer."""
    made = env(row)
    assert made.shown(made.train[0]) == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n⟦a<|im_end|>⟧"


def test_the_response_column_names_the_answer():
    """A preference set can be used for SFT on its better answers."""
    made = env({"prompt": "q", "chosen": "good", "rejected": "bad"}, response_column="chosen")
    assert learned(made) == "good<|im_end|>"


def test_a_table_s_empty_places_are_no_keys():
    """A table has a place for `tool_calls` in every message; an empty one is none."""
    filled = [{**message, "tool_calls": None, "name": None} for message in CONVERSATION]
    assert env({"messages": filled}).train[0].ids == env({"messages": CONVERSATION}).train[0].ids


def test_tools_are_shown_to_the_model_whether_as_a_list_or_as_json():
    """Tables keep schemas as JSON text, since each has fields of its own."""
    schema = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    listed = env({"messages": CONVERSATION, "tools": [schema]})
    text = '[{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]'
    assert listed.train[0].ids == env({"messages": CONVERSATION, "tools": text}).train[0].ids
    assert '"name": "look"' in listed.shown(listed.train[0])


def test_all_turns_are_learned_or_the_last():
    """Both have the same tokens."""
    every, last = env({"messages": TWO_ANSWERS}), env({"messages": TWO_ANSWERS}, settings=RowSettings(turns="last"))
    assert (learned(every), learned(last)) == ("a<|im_end|>b<|im_end|>", "b<|im_end|>")
    assert every.train[0].ids == last.train[0].ids


def test_plain_texts_are_learned_as_they_are_with_the_end_behind():
    """No template is put around them; the end is there once."""
    made = env({"prompt": "Q: q A:", "response": " a"}, settings=RowSettings(plain_text=True))
    assert made.shown(made.train[0]) == "Q: q A:⟦ a<|im_end|>⟧"
    ended = env({"prompt": "Q: q A:", "response": " a<|im_end|>"}, settings=RowSettings(plain_text=True))
    assert ended.train[0].ids == made.train[0].ids


def test_a_tokenizer_without_a_template_takes_texts_as_they_are():
    """There is nothing to put around them."""
    made = env({"prompt": "q ", "response": "a"}, tokenizer=byte_tokenizer(None))
    assert made.shown(made.train[0]) == "q ⟦a<|im_end|>⟧"


def test_a_raw_prompt_begins_with_one_bos_and_no_end_stands_before_the_answer():
    """What the tokenizer adds to a text is added to the prompt once."""
    tokenizer = byte_tokenizer(None, add_bos=True, add_eos=True)
    made = env({"prompt": "q", "response": "a"}, tokenizer=tokenizer)
    assert made.shown(made.train[0]) == "<|bos|>q⟦a<|im_end|>⟧"


def test_prompt_and_answer_are_encoded_apart():
    """A token that would merge across the seam is not there, so the mask stands where the answer does."""
    tokenizer = byte_tokenizer(None, merges=[("a", "b")])
    made = env({"prompt": "a", "response": "bc"}, tokenizer=tokenizer)
    assert list(made.train[0].ids) == [ord("a"), ord("b"), ord("c"), 258]
    assert list(made.train[0].mask) == [0, 1, 1, 1]


def test_a_row_that_is_too_long_is_left_out_and_counted():
    """No row is shortened unless that is asked for."""
    made = env(
        {"prompt": "q", "response": "a" * 50}, {"prompt": "q", "response": "a"}, settings=RowSettings(max_length=60)
    )
    assert made.counts["train"].dropped == {"too_long": 1}
    assert (made.counts["train"].used, made.counts["train"].rows) == (1, 2)
    assert "1 left out: longer than max_length" in str(made.counts["train"])


def test_a_row_that_is_cut_loses_its_end_and_is_counted():
    """The end of the turn is gone with it: the model does not learn to stop there."""
    settings = RowSettings(max_length=60, too_long="cut")
    made = env({"prompt": "q", "response": "a" * 50}, settings=settings)
    assert (len(made.train[0].ids), made.train[0].cut, made.counts["train"].cut) == (60, True, 1)
    assert set(learned(made)) == {"a"}


def test_a_row_of_which_the_cut_leaves_no_answer_is_counted():
    """Its prompt fills all there is."""
    settings = RowSettings(max_length=20, too_long="cut")
    with pytest.raises(ConfigurationError, match=r"nothing can be trained on.*1 left out: no token of an answer"):
        env({"prompt": "q" * 50, "response": "a"}, settings=settings)


@pytest.mark.parametrize("answer", ["", None])
def test_an_empty_answer_teaches_nothing_and_is_counted(answer):
    """It is left out, and the other rows are used."""
    made = env({"prompt": "q", "response": answer}, {"prompt": "q", "response": "a"})
    assert made.counts["train"].dropped == {"nothing_to_train": 1}


def test_rows_that_teach_nothing_at_all_are_refused_with_the_reason():
    """A run that would learn nothing does not begin."""
    with pytest.raises(ConfigurationError, match=r"0 of 2 rows.*2 left out: no token of an answer to train"):
        env({"messages": CONVERSATION[:1]}, {"messages": CONVERSATION[:1]})


def test_missing_columns_are_named_with_those_that_are_there():
    """The message says what would do, and how to rename."""
    with pytest.raises(
        ConfigurationError, match=r"'messages', or 'prompt' with 'response'.*'text', 'label'.*`columns`"
    ):
        env({"text": "q", "label": "a"})


@pytest.mark.parametrize(
    ("options", "forms"),
    [
        ({}, "'messages', or 'prompt' with 'response' or 'completion'"),
        ({"response_column": "said"}, "'prompt' with 'said'"),
        ({"prompt_of": lambda row: []}, "'response' or 'completion'"),
    ],
)
def test_the_columns_that_are_missing_are_those_that_would_do(options, forms):
    """A column of one's own for the answer is wanted where it is named, and nothing in its place."""
    with pytest.raises(ConfigurationError, match=f"the columns {forms}; "):
        env({"text": "q", "label": "a"}, **options)


def test_a_prompt_template_needs_the_column_of_the_answer():
    """A conversation that is whole already has no place for another prompt."""
    with pytest.raises(ConfigurationError, match="rows for sft have the columns"):
        env({"messages": CONVERSATION}, prompt_of=lambda row: CONVERSATION[:1])


def test_a_value_of_another_type_is_refused_with_its_row():
    """A message is a mapping with a role."""
    with pytest.raises(ConfigurationError, match=r"row train\[1\]: 'messages' must be text or a list of messages"):
        env({"messages": CONVERSATION}, {"messages": [["user", "q"]]})


def test_tools_that_are_no_json_are_refused_with_their_row():
    """A text in that column is JSON."""
    with pytest.raises(ConfigurationError, match=r"row train\[0\]: 'tools' is text that is no JSON"):
        env({"messages": CONVERSATION, "tools": "look()"})


def test_a_template_s_refusal_names_the_row():
    """The row is what can be looked at."""
    with pytest.raises(TemplateError, match=r"row train\[0\]: .*generation prompt"):
        env({"messages": CONVERSATION}, tokenizer=byte_tokenizer("generation"))


@pytest.mark.parametrize(
    "options", [{"turns": "first"}, {"too_long": "error"}, {"max_length": 1}], ids=["turns", "too_long", "max_length"]
)
def test_settings_that_cannot_be_are_refused(options):
    """At construction, with what was given."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        RowSettings(**options)


def test_the_held_out_rows_are_other_rows():
    """The division is that of `split_rows`, and the same every time."""
    rows = [{"prompt": f"q{i}", "response": "a"} for i in range(10)]
    made = env(*rows, train_test_split=0.8)
    train, held_out = ({bytes(example.ids.tobytes()) for example in part} for part in (made.train, made.held_out))
    assert (len(train), len(held_out), len(train & held_out)) == (8, 2, 0)


def test_the_fingerprint_is_that_of_every_token_and_mask():
    """Other rows, another template or other settings have another one."""
    rows = [{"messages": TWO_ANSWERS}, {"messages": CONVERSATION}]
    same = env(*rows).fingerprint
    assert env(*rows).fingerprint == same
    others = [
        env(*rows[::-1]),
        env(*rows, tokenizer=byte_tokenizer("default_system")),
        env(*rows, settings=RowSettings(turns="last")),
    ]
    assert same not in {other.fingerprint for other in others}


def test_how_calls_are_written_can_be_said():
    """Where the template does not tell, as in a rollout."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [CONVERSATION[0], {"role": "assistant", "content": "", "tool_calls": [call]}]
    made = env({"messages": messages}, settings=RowSettings(tool_parser="react"))
    assert "Action: look" in learned(made)
    assert "<tool_call>" in learned(env({"messages": messages}))
