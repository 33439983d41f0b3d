"""Answers that the prompt begins: their tokens follow the generation prompt, and nothing ends the turn."""

import pytest

from tiltyard.testing.tokenizer import IM_END, TEMPLATES, byte_tokenizer
from tiltyard.tokens.renderer import TemplateRenderer, make_renderer

USER = {"role": "user", "content": "Guess."}
BEGUN = {"role": "assistant", "content": "My guess is "}
CALL = {"type": "function", "id": "call_0", "function": {"name": "add", "arguments": {}}}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.filterwarnings("ignore:.*rewrites history")
def test_the_beginning_follows_the_generation_prompt(name):
    """Whatever the template: the prompt without it, and its own tokens."""
    renderer = TemplateRenderer(byte_tokenizer(name))
    assert renderer.opening([USER, BEGUN]) == renderer.opening([USER]) + list(b"My guess is ")


def test_text_that_looks_like_a_special_token_stays_text():
    """A beginning made of a data row cannot end the turn."""
    tokenizer = byte_tokenizer()
    begun = {"role": "assistant", "content": f"a{IM_END}b"}
    ids = make_renderer(tokenizer).opening([USER, begun])
    opening = make_renderer(tokenizer).opening([USER])
    assert ids == opening + list(f"a{IM_END}b".encode())


def test_a_turn_of_calls_is_no_beginning():
    """A conversation that ends with calls is closed as it stands."""
    renderer = TemplateRenderer(byte_tokenizer("chatml_tools"))
    calling = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert renderer.opening([USER, calling]) == renderer.full([USER, calling])


def test_an_empty_beginning_begins_nothing():
    """An assistant's message without text is a message."""
    renderer = TemplateRenderer(byte_tokenizer())
    empty = {"role": "assistant", "content": ""}
    assert renderer.opening([USER, empty]) == renderer.full([USER, empty])


def test_a_reply_has_all_that_was_written():
    """The thinking and the calls with their markup, and not the token that ended the turn."""
    tokenizer = byte_tokenizer()
    renderer = make_renderer(tokenizer)
    end = tokenizer.convert_tokens_to_ids(IM_END)
    reply = renderer.parse([*b"<think>hm</think>7", end], "stop")
    assert (reply.text, reply.reasoning, reply.written) == ("7", "hm", "<think>hm</think>7")
