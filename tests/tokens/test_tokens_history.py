"""Templates that rewrite earlier turns: noticed once, and never followed."""

import warnings

import pytest

from tiltyard.testing.tokenizer import TEMPLATES, byte_tokenizer
from tiltyard.tokens.renderer import TemplateRenderer, make_renderer
from tiltyard.tokens.transcript import Transcript

USER = {"role": "user", "content": "Guess."}
LOWER = {"role": "user", "content": "Lower."}


def test_a_template_that_removes_thinking_is_noticed_before_the_run_with_one_warning():
    """TK-02: one warning at construction, none while the episodes run."""
    with pytest.warns(UserWarning, match="rewrites history: thinking is removed from earlier turns") as caught:
        renderer = make_renderer(byte_tokenizer("thinking"))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        renderer.opening([USER])
        renderer.bridge((), [LOWER])
    assert renderer.rewrites_history


def test_raw_ids_stay_append_only_where_the_template_rewrites_history():
    """TK-02: the thinking stays in the context, so the ids of the loss are the ids that the sampler was given."""
    tokenizer = byte_tokenizer("thinking")
    renderer, transcript = TemplateRenderer(tokenizer), Transcript()
    transcript.observe(renderer.opening([USER]))
    first = tokenizer.encode("<think>p</think>A<|im_end|>")
    transcript.sample(first, [-0.1] * len(first))
    seen = list(transcript.ids)
    transcript.observe(renderer.bridge(first, [LOWER]))
    assert transcript.ids[: len(seen)] == seen
    assert tokenizer.decode(transcript.ids).count("<think>p</think>A") == 1


def test_a_generation_prompt_that_opens_the_thinking_is_noticed():
    """What it opens is not in a later render; the reply is read as beginning inside the thinking."""
    with pytest.warns(UserWarning, match="what the generation prompt opens is missing from earlier turns"):
        renderer = make_renderer(byte_tokenizer("generation"))
    reply = renderer.parse([*b"p</think>A", 258], "stop")
    assert (reply.reasoning, reply.text) == ("p", "A")


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in ("thinking", "generation")])
def test_templates_that_keep_history_are_not_warned_about(name):
    """Warnings are errors here."""
    assert make_renderer(byte_tokenizer(name), tools=True).rewrites_history == ""
