"""Sampled ids to replies."""

import pytest

from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.tokens.renderer import TemplateRenderer
from tiltyard.types import ToolCall

END = 258
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "x"}}\n</tool_call>'


def test_a_reply_keeps_its_ids():
    """`token_ids` are the sampled ids, end token included; the text is without it."""
    reply = TemplateRenderer(byte_tokenizer()).parse([72, 105, END], "stop")
    assert (reply.text, reply.token_ids, reply.finish_reason) == ("Hi", (72, 105, END), "stop")


def test_markers_that_are_special_tokens_are_seen_by_the_parser():
    """T20: a call is found whether or not its markers are special tokens."""
    marked = byte_tokenizer(extra_special_tokens=["<tool_call>", "</tool_call>", "<think>", "</think>"])
    for tokenizer in (marked, byte_tokenizer()):
        renderer = TemplateRenderer(tokenizer)
        ids = [*tokenizer.encode(f"<think>hm</think>Look: {CALL}"), END]
        reply = renderer.parse(ids, "stop")
        assert (reply.reasoning, reply.text) == ("hm", "Look:")
        assert reply.tool_calls == (ToolCall("look", {"at": "x"}),)


def test_special_tokens_that_no_parser_reads_are_not_part_of_the_text():
    """A stray <|im_start|> is no text for the environment."""
    assert TemplateRenderer(byte_tokenizer()).parse([72, 257, 105, END], "stop").text == "Hi"


def test_spaces_are_not_cleaned_up():
    """TK-01: the environment gets what was sampled."""
    tokenizer = byte_tokenizer()
    tokenizer.clean_up_tokenization_spaces = True
    text = "is it so ? yes !  "
    assert TemplateRenderer(tokenizer).parse([*text.encode(), END], "stop").text == text


def test_a_cut_call_is_an_error():
    """A call whose end was not sampled is never run."""
    renderer = TemplateRenderer(byte_tokenizer())
    (call,) = renderer.parse(list(CALL[:-20].encode()), "length").tool_calls
    assert call.arguments is None
    assert call.error


@pytest.mark.parametrize("ids", [[], [END]])
def test_an_empty_turn_is_an_empty_reply(ids):
    """Neither raises nor invents anything."""
    reply = TemplateRenderer(byte_tokenizer()).parse(ids, "stop")
    assert (reply.text, reply.tool_calls, reply.token_ids) == ("", (), tuple(ids))


def test_bytes_that_are_not_text_are_replaced():
    """An unfinished UTF-8 sequence does not raise."""
    assert TemplateRenderer(byte_tokenizer()).parse([0xC3, END], "stop").text == "\ufffd"
