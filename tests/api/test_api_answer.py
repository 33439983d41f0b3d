"""What comes from a server: every form that is known, and errors for what is no answer."""

import pytest

from tiltyard.errors import PolicyError
from tiltyard.policies.answer import decode, read_reply
from tiltyard.types import Reply, ToolCall


def completion(message=None, *, finish_reason="stop", choice=None, **top):
    first = {"index": 0, "message": message, "finish_reason": finish_reason, **(choice or {})}
    return {"choices": [first], **top}


def said(content, **fields):
    return {"role": "assistant", "content": content, **fields}


def call(name, arguments, call_id="1"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_text_is_a_reply():
    """The plain case."""
    assert read_reply(completion(said("Hi"))) == Reply("Hi")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (said(None), ""),
        ({"role": "assistant"}, ""),
        (said([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, "noise"]), "ab"),
        (said([{"type": "thinking", "text": None}, {"type": "text", "text": "a"}]), "a"),
        (said(None, refusal="I will not."), "I will not."),
        (said(12), "12"),
    ],
)
def test_content_in_its_other_forms_is_text(message, text):
    """Null content comes with tool calls, lists come from gateways."""
    assert read_reply(completion(message)).text == text


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_apart_under_either_name(name):
    """It is recorded and never sent back."""
    assert read_reply(completion(said("4", **{name: "2+2"}))) == Reply("4", reasoning="2+2")


def test_parallel_calls_keep_their_order_and_their_ids():
    """All calls of a turn are the environment's to run."""
    calls = [call("a", '{"x": 1}', "c1"), call("b", "{}", "c2")]
    reply = read_reply(completion(said(None, tool_calls=calls), finish_reason="tool_calls"))
    assert [(one.name, one.arguments, one.id) for one in reply.tool_calls] == [("a", {"x": 1}, "c1"), ("b", {}, "c2")]
    assert reply.finish_reason == "stop"


@pytest.mark.parametrize("arguments", ['{"x": ', "[1]", '"{}"', "NaN"])
def test_a_call_with_broken_arguments_carries_its_error_and_is_not_dropped(arguments):
    """T22, T23: the model reads what was wrong; the call never runs with guessed arguments."""
    (broken, sound) = read_reply(completion(said("", tool_calls=[call("a", arguments), call("b", "{}")]))).tool_calls
    assert (broken.name, broken.arguments, broken.error is not None, broken.raw) == ("a", None, True, arguments)
    assert sound.error is None


@pytest.mark.parametrize("arguments", ["", None, "{}", {}])
def test_a_call_without_arguments_is_sound(arguments):
    """A12: no arguments is {}."""
    assert read_reply(completion(said("", tool_calls=[call("a", arguments)]))).tool_calls[0].arguments == {}


@pytest.mark.parametrize("entry", ["move", {"function": "move"}, {"id": "1"}, {"function": {"arguments": "{}"}}, 7])
def test_what_is_no_call_is_a_call_with_an_error(entry):
    """T24: one bad entry voids only itself."""
    reply = read_reply(completion(said("", tool_calls=[entry, call("b", "{}")])))
    assert [one.error is None for one in reply.tool_calls] == [False, True]


def test_a_single_call_that_is_not_in_a_list_is_read():
    """Some gateways unwrap lists of one."""
    assert read_reply(completion(said("", tool_calls=call("a", "{}")))).tool_calls[0].name == "a"


def test_a_call_in_the_older_form_is_read():
    """`function_call` is how it was before there were several."""
    reply = read_reply(completion(said(None, function_call={"name": "a", "arguments": "{}"})))
    assert reply.tool_calls == (ToolCall("a", {}, raw="{}"),)


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "function_call", "eos_token", None, ""])
def test_an_answer_that_the_model_ended_is_whole(reason):
    """Whatever the server calls it."""
    assert read_reply(completion(said("Hi"), finish_reason=reason)).finish_reason == "stop"


def test_an_answer_that_was_cut_is_cut():
    """A8: it never reaches the environment as if it were whole."""
    assert read_reply(completion(said("Hi"), finish_reason="length")).finish_reason == "length"


@pytest.mark.parametrize(("sampled", "reason"), [(8, "length"), (3, "context"), (0, "length"), (None, "length")])
def test_an_answer_that_was_cut_before_its_bound_filled_the_context(sampled, reason):
    """Servers say "length" for both; the number of tokens tells them apart."""
    usage = {"prompt_tokens": 5, "completion_tokens": sampled}
    data = completion(said("Hi"), finish_reason="length", usage=usage)
    assert read_reply(data, max_tokens=8).finish_reason == reason


@pytest.mark.parametrize("reason", ["content_filter", "abort", "error", "banana"])
def test_an_answer_that_the_server_stopped_is_an_error(reason):
    """Half an answer is not taken for the model's."""
    with pytest.raises(PolicyError, match=reason):
        read_reply(completion(said("Hi"), finish_reason=reason))


@pytest.mark.parametrize(
    "data", [{"choices": []}, {"choices": None}, {}, [], None, "ok", {"choices": ["x"]}, completion(None)]
)
def test_what_holds_no_answer_is_an_error_that_shows_it(data):
    """T12, T21: malformed and empty choices fail one episode, with the server's words."""
    with pytest.raises(PolicyError, match="the server's answer has no"):
        read_reply(data)


def test_the_context_is_what_the_server_counted():
    """Prompt and answer; None where it counts nothing."""
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 9}
    assert read_reply(completion(said("Hi"), usage=usage)).context_tokens == 8
    assert read_reply(completion(said("Hi"), usage=None)).context_tokens is None


def test_half_a_surrogate_pair_is_read():
    """A model can sample half of an emoji, and some servers send it."""
    assert read_reply(decode(b'{"choices": [{"message": {"content": "a\\ud83d"}}]}')).text == "a\ufffd"


def entry(token, logprob, **more):
    likelier = {"token": "?", "logprob": -0.01, "id": 63}
    return {
        "token": token,
        "logprob": logprob,
        "top_logprobs": [likelier, {"token": token, "logprob": logprob}],
        **more,
    }


def tokens(choice, **top):
    reply = read_reply(completion(said("Hi"), choice=choice, **top))
    return reply.prompt_ids, reply.token_ids, reply.logprobs


def test_vllm_gives_ids_of_prompt_and_answer():
    """`return_token_ids`: the log-probability is that of the sampled token, second in its list of the likeliest."""
    choice = {"token_ids": [5, 6], "logprobs": {"content": [entry("H", -2.0), entry("i", -1)]}}
    assert tokens(choice, prompt_token_ids=[1, 2]) == ((1, 2), (5, 6), (-2.0, -1.0))


@pytest.mark.parametrize("name", ["token_id:{}", "token:{}"])
def test_ids_as_names_of_tokens_are_read(name):
    """vLLM with `return_tokens_as_token_ids`."""
    content = [entry(name.format(5), -2.0), entry(name.format(6), -1.0)]
    assert tokens({"logprobs": {"content": content}}) == (None, (5, 6), (-2.0, -1.0))


def test_llama_cpp_gives_ids_with_the_log_probabilities():
    """Case LO-05: the log-probability belongs to the id that was sampled, not to the likeliest one."""
    content = [entry("H", -2.0, id=5), entry("i", -1.0, id=6)]
    assert tokens({"logprobs": {"content": content}}) == (None, (5, 6), (-2.0, -1.0))


def test_log_probabilities_without_ids_are_kept():
    """T11: what was paid for is not dropped."""
    assert tokens({"logprobs": {"content": [entry("H", -2.0)]}}) == (None, None, (-2.0,))


@pytest.mark.parametrize(
    "content", [[entry("H", -2.0)], [entry("H", None), entry("i", -1.0)], [entry("H", "x"), entry("i", -1.0)], None, 3]
)
def test_log_probabilities_that_do_not_fit_the_ids_are_none(content):
    """All or none: one missing would shift the others."""
    assert tokens({"token_ids": [5, 6], "logprobs": {"content": content}})[1:] == ((5, 6), None)


def test_ids_that_contradict_each_other_are_none():
    """Nobody knows then which of them were sampled."""
    content = [entry("token_id:5", -2.0), entry("token_id:7", -1.0)]
    assert tokens({"token_ids": [5, 6], "logprobs": {"content": content}})[1] is None


@pytest.mark.parametrize("ids", ["56", [5, "6"], [5, None], {"5": 6}, [True]])
def test_what_is_no_list_of_ids_is_none(ids):
    """Nothing is guessed."""
    assert tokens({"token_ids": ids})[1] is None
