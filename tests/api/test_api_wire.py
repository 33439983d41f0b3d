"""What goes to a server: the keys of a message's role and nothing else, each message encoded once."""

import json

import pytest

from tiltyard.errors import ConfigurationError
from tiltyard.policies.wire import MALFORMED, checked_fields, encode, outgoing, request_body
from tiltyard.types import Prompt


def sent(messages, *, fields=None, max_tokens=None, **prompt):
    return json.loads(encode(request_body("m", fields or {}, Prompt(messages, messages, **prompt), max_tokens)))


def called(arguments):
    function = {"name": "move", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def sent_arguments(arguments):
    return outgoing(called(arguments))["tool_calls"][0]["function"]["arguments"]


def test_server_noise_never_goes_back():
    """T10: finish_reason, reasoning_content and whatever else a server added stay here."""
    noisy = {
        "role": "assistant",
        "content": "Hi",
        "reasoning_content": "hm",
        "reasoning": "hm",
        "finish_reason": "stop",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": [],
    }
    assert outgoing(noisy) == {"role": "assistant", "content": "Hi"}


def test_keys_without_a_value_are_not_sent():
    """A row of a table has a column for what another row has; a server takes no name of null."""
    user = {"role": "user", "content": "Go.", "name": None, "tool_call_id": None}
    assert outgoing(user) == {"role": "user", "content": "Go."}
    assert outgoing({"role": "user", "content": "Go.", "name": None}) == {"role": "user", "content": "Go."}
    assert outgoing({"role": "assistant", "content": None}) == {"role": "assistant", "content": None}


def test_noise_inside_tool_calls_never_goes_back():
    """`index` and the like belong to a stream of the server, not to a conversation."""
    message = called("{}")
    message["tool_calls"][0] |= {"index": 0, "extra_content": {}}
    message["tool_calls"][0]["function"]["parsed_arguments"] = {}
    assert outgoing(message) == called("{}")


def test_a_tool_message_keeps_the_id_of_its_call():
    """Each result says which call it belongs to."""
    message = {"role": "tool", "content": "ok", "tool_call_id": "7", "name": "move", "info": {"secret": 1}}
    assert outgoing(message) == {"role": "tool", "content": "ok", "tool_call_id": "7", "name": "move"}


def test_a_clean_message_is_sent_as_it_is():
    """Nothing is copied that need not be."""
    message = {"role": "user", "content": "Hi"}
    assert outgoing(message) is message


@pytest.mark.parametrize("text", ['{"a": 1}', '{"a":"é"}', "{}"])
def test_sound_arguments_go_back_as_the_model_wrote_them(text):
    """The server sees the same text that it sampled."""
    assert sent_arguments(text) == text


def test_arguments_given_as_an_object_become_text():
    """The OpenAI form of arguments is a string."""
    assert sent_arguments({"a": "é"}) == '{"a":"é"}'


@pytest.mark.parametrize("text", ['{"a": ', "[1]", '"x"', "NaN", "3"])
def test_broken_arguments_go_back_inside_an_object(text):
    """Servers parse the arguments of earlier calls, and answer 400 for the rest of the episode when they cannot."""
    assert json.loads(sent_arguments(text)) == {MALFORMED: text}


@pytest.mark.parametrize("nothing", ["", None])
def test_no_arguments_are_an_empty_object(nothing):
    """A call without arguments is a call."""
    assert sent_arguments(nothing) == "{}"


def test_the_body_has_the_model_the_fields_the_tools_and_the_bound():
    """What a request is made of."""
    tools = ({"type": "function", "function": {"name": "move"}},)
    user = {"role": "user", "content": "Hi"}
    assert sent([user], fields={"temperature": 0.5, "top_k": 7}, max_tokens=9, tools=tools) == {
        "model": "m",
        "messages": [user],
        "temperature": 0.5,
        "top_k": 7,
        "tools": [*tools],
        "max_tokens": 9,
    }


def test_without_tools_a_seed_or_a_bound_none_is_sent():
    """Some servers refuse an empty list of tools."""
    assert set(sent([{"role": "user", "content": "Hi"}])) == {"model", "messages"}


@pytest.mark.parametrize(
    ("fields", "max_tokens", "bound"),
    [
        ({}, 9, {"max_tokens": 9}),
        ({"max_tokens": 5}, 9, {"max_tokens": 5}),
        ({"max_tokens": 50}, 9, {"max_tokens": 9}),
        ({"max_completion_tokens": 5}, 9, {"max_completion_tokens": 5}),
        ({"max_completion_tokens": 50}, 9, {"max_completion_tokens": 9}),
        ({"max_tokens": 5}, None, {"max_tokens": 5}),
        ({}, None, {}),
    ],
)
def test_the_smaller_bound_holds_under_the_name_that_the_fields_use(fields, max_tokens, bound):
    """The episode's limit and the user's hold both; newer models of OpenAI take only the longer name."""
    body = sent([{"role": "user", "content": "Hi"}], fields=fields, max_tokens=max_tokens)
    assert {name: body[name] for name in body if "tokens" in name} == bound


def test_the_seed_of_a_prompt_fits_in_32_bits():
    """llama.cpp's server keeps no more."""
    assert sent([{"role": "user", "content": "Hi"}], seed=2**62 + 5)["seed"] == 5


def test_lone_surrogates_become_replacement_characters():
    """Text that cannot be encoded does not fail the episode."""
    assert sent([{"role": "user", "content": "a\ud800b"}])["messages"][0]["content"] == "a\ufffdb"


def test_integers_of_any_size_are_sent():
    """The fast encoder stops at 64 bits, and JSON does not."""
    assert json.loads(encode({"n": 2**70})) == {"n": 2**70}


def test_a_conversation_that_grows_is_sent_whole_each_time():
    """The memo saves work, and changes nothing of what is sent."""
    memo, said, plain = {}, [], []
    for number in range(6):
        said.append({"role": "user", "content": f"é {number}", "noise": 1})
        said.append(called(json.dumps({"n": number})))
        plain += [outgoing(message) for message in said[-2:]]
        assert sent(said, memo=memo)["messages"] == plain


def test_a_memo_of_another_conversation_is_not_used():
    """A policy that is handed the wrong memo still sends the right messages."""
    memo = {}
    sent([{"role": "user", "content": "one"}, {"role": "user", "content": "two"}], memo=memo)
    other = [{"role": "user", "content": "three"}, {"role": "user", "content": "four"}]
    assert sent(other, memo=memo)["messages"] == other
    assert sent(other[:1], memo=memo)["messages"] == other[:1]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"n": 2}, "n must be 1, got 2"),
        ({"stream": True}, "stream=True is not supported"),
        ({"model": "x"}, "give OpenAI"),
        ({"messages": []}, "the episode's"),
        ({"tools": []}, "the environment's"),
        ({"seed": 1}, "one of its own"),
        ({"stop": object()}, "cannot be written as JSON"),
        ({"temperature": float("nan")}, "cannot be written as JSON"),
        ({"max_tokens": "5"}, "max_tokens must be a whole number >= 1, got '5'"),
        ({"max_completion_tokens": 0}, "max_completion_tokens must be a whole number >= 1, got 0"),
    ],
)
def test_fields_that_cannot_work_are_refused_at_once(fields, says):
    """T11: what is asked for is kept or refused with a message, never dropped."""
    with pytest.raises(ConfigurationError, match=says):
        checked_fields(fields)


def test_any_other_field_passes_through():
    """A server's own parameters are the server's business: nothing is renamed."""
    fields = {"n": 1, "stream": False, "repetition_penalty": 1.1, "min_p": 0.05, "stop_token_ids": [7]}
    assert checked_fields(fields) == fields
