"""Which family a tokenizer's chat template belongs to."""

import re
from pathlib import Path

import pytest
from family_texts import FAMILY_TEXTS, TOOLS

from tiltyard.errors import ConfigurationError, TemplateError
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.tokens.renderer import TemplateRenderer, make_renderer
from tiltyard.tools.parsing import FAMILIES, CallTurn, recognise
from tiltyard.types import ToolCall

CALL = "{% set call = message['tool_calls'][0]['function'] %}"


def template(written, *, calls=True):
    """A template with a tools branch, which writes calls in this way, or not at all."""
    call = f"{CALL}{written}" if calls else "{{ raise_exception('no calls') }}"
    return (
        "{% if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}"
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
        "{% if message['tool_calls'] %}" + call + "{% else %}{{ message['content'] }}{% endif %}"
        "{{ '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )


NAME, ARGS = "call['name']", "(call['arguments'] | tojson)"
JSON = '\'{"name": "\' + ' + NAME + ' + \'", "{key}": \' + ' + ARGS + " + '}'"
PAIRS = "{% for k, v in call['arguments'] | items %}"
B = "\\uff5c"
WRITTEN = {
    "hermes": "{{ '<tool_call>\\n' + " + JSON.replace("{key}", "arguments") + " + '\\n</tool_call>' }}",
    "llama3": "{{ " + JSON.replace("{key}", "parameters") + " }}",
    "mistral": "{{ '[TOOL_CALLS] [' + " + JSON.replace("{key}", "arguments") + " + ']' }}",
    "qwen3_coder": "{{ '<tool_call>\\n<function=' + "
    + NAME
    + " + '>\\n' }}"
    + PAIRS
    + "{{ '<parameter=' + k + '>\\n' + v "
    "+ '\\n</parameter>\\n' }}{% endfor %}{{ '</function>\\n</tool_call>' }}",
    "glm": "{{ '<tool_call>' + " + NAME + " + '\\n' }}" + PAIRS + "{{ '<arg_key>' + k + '</arg_key>\\n<arg_value>' + v "
    "+ '</arg_value>\\n' }}{% endfor %}{{ '</tool_call>' }}",
    "gemma": "{{ '<|tool_call>call:' + " + NAME + " + '{' }}" + PAIRS + "{{ k + ':<|\"|>' + v + '<|\"|>' }}{% endfor %}"
    "{{ '}<tool_call|>' }}",
    "kimi": "{{ '<|tool_calls_section_begin|><|tool_call_begin|>functions.' + " + NAME + " + ':0"
    "<|tool_call_argument_begin|>' + " + ARGS + " + '<|tool_call_end|><|tool_calls_section_end|>' }}",
    "harmony": "{{ ' to=functions.' + "
    + NAME
    + " + '<|channel|>commentary json<|message|>' + "
    + ARGS
    + " + '<|call|>' }}",
    "deepseek": "{{ '<B>tool▁calls▁begin<E><B>tool▁call▁begin<E>function<B>tool▁sep<E>' + "
    + NAME
    + " + '\\n```json\\n' + "
    + ARGS
    + " + '\\n```<B>tool▁call▁end<E><B>tool▁calls▁end<E>' }}",
}
WRITTEN["deepseek"] = WRITTEN["deepseek"].replace("<B>", "<\uff5c").replace("<E>", "\uff5c>")


@pytest.mark.parametrize("name", [name for name in FAMILY_TEXTS if name != "react"])
def test_a_template_that_writes_calls_shows_its_family(name):
    """The family is the one that reads such a call back."""
    family = TemplateRenderer(byte_tokenizer(chat_template=template(WRITTEN[name]))).family
    assert family is FAMILIES[name]


@pytest.mark.parametrize("name", ["mistral", "kimi", "deepseek", "glm", "qwen3_coder", "hermes", "gemma"])
def test_a_template_that_writes_no_calls_is_known_by_its_text(name):
    """Its special texts stand in it somewhere."""
    comment = "{# " + " ".join(FAMILIES[name].signs) + " #}"
    family = TemplateRenderer(byte_tokenizer(chat_template=comment + template("", calls=False))).family
    assert family is FAMILIES[name]


PYTHONIC = template("{{ '<|tool_call_start|>[' + call['name'] + '()]<|tool_call_end|>' }}")


def test_an_unknown_way_of_writing_calls_is_an_error_at_start_with_the_cure():
    """Never a silent run without a call; the message lists the families and how to name one."""
    with pytest.raises(TemplateError, match=r"model\.tool_parser in a manifest, one of: hermes, .*react"):
        make_renderer(byte_tokenizer(chat_template=PYTHONIC), tools=True)


def test_without_tools_an_unknown_family_does_no_harm():
    """Unless tools are shown after all."""
    renderer = make_renderer(byte_tokenizer(chat_template=PYTHONIC))
    assert renderer.parse(list(b"Hi"), "stop").text == "Hi"
    with pytest.raises(TemplateError, match="is not known"):
        renderer.opening([{"role": "user", "content": "x"}], TOOLS)


def test_a_family_can_be_named():
    """Also one of your own."""
    tokenizer = byte_tokenizer(chat_template=PYTHONIC)
    renderer = make_renderer(tokenizer, tools=True, parser="glm")
    text = FAMILY_TEXTS["glm"].add
    assert renderer.parse(list(text.encode()), "stop", tools=TOOLS).tool_calls == (ToolCall("add", {"a": 1, "b": 2}),)
    assert make_renderer(tokenizer, tools=True, parser=FAMILIES["react"]).stop_ids == renderer.stop_ids
    with pytest.raises(ConfigurationError, match="no parser for the family 'gpt'; there are: hermes"):
        make_renderer(tokenizer, parser="gpt")


def test_a_template_without_a_tools_branch_is_asked_for_calls_in_the_form_that_is_read():
    """Hermes, unless another family is named."""
    for name in ("hermes", "react"):
        tokenizer = byte_tokenizer()
        renderer = make_renderer(tokenizer, tools=True, parser=None if name == "hermes" else name)
        prompt = tokenizer.decode(renderer.opening([{"role": "user", "content": "x"}], TOOLS))
        assert FAMILIES[name].how_to_call() in prompt
        reply = renderer.parse(list(FAMILY_TEXTS[name].add.encode()), "stop", tools=TOOLS)
        assert [(c.name, c.arguments) for c in reply.tool_calls] == [("add", {"a": 1, "b": 2})]


def test_markers_of_the_family_that_are_special_tokens_reach_its_parser():
    """T20: closing tokens too, also where they end the turn."""
    tokens = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"]
    tokenizer = byte_tokenizer(chat_template=template(WRITTEN["harmony"]), extra_special_tokens=tokens)
    renderer = TemplateRenderer(tokenizer)
    ids = tokenizer.encode(FAMILY_TEXTS["harmony"].add)
    reply = renderer.parse(ids, "stop", tools=TOOLS)
    assert reply.tool_calls == (ToolCall("add", {"a": 1, "b": 2}),)
    stops = {tokenizer.convert_ids_to_tokens(index) for index in renderer.stop_ids}
    assert stops == {"<|call|>", "<|return|>", "<|im_end|>"}


def test_a_token_inside_a_call_never_ends_the_turn():
    """Gemma's quote follows an argument; as an end it would cut every call."""
    tokens = ["<|tool_call>", "<tool_call|>", '<|"|>']
    tokenizer = byte_tokenizer(chat_template=template(WRITTEN["gemma"]), extra_special_tokens=tokens)
    renderer = TemplateRenderer(tokenizer)
    assert {tokenizer.convert_ids_to_tokens(index) for index in renderer.stop_ids} == {"<|im_end|>"}


REAL = {
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_vl": "hermes",
    "qwen3_6": "qwen3_coder",
    "nemotron_3_nano": "qwen3_coder",
    "glm4moe": "glm",
    "gptoss": "harmony",
    "gemma4": "gemma",
    "gemma4_v2": "gemma",
    "llama3_2": "llama3",
    "lfm2_v2": None,
    "phi3": "hermes",
}
SPECIAL = re.compile(r'<\|[\w"]+\|?>|<\w+\|>|<\uff5c[^>]*\uff5c>')


@pytest.mark.parametrize(("name", "expected"), REAL.items())
def test_published_templates_are_recognised(name, expected):
    """As another package ships them; one without a tools branch gets our section and the Hermes parser."""
    trl = pytest.importorskip("trl")
    path = Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja"
    if not path.is_file():
        pytest.skip(f"this version of trl has no {path.name}")
    text = path.read_text(encoding="utf-8")
    tokens = sorted({*SPECIAL.findall(text)} - {"<|im_start|>", "<|im_end|>", "<|endoftext|>"})
    family = TemplateRenderer(byte_tokenizer(chat_template=text, extra_special_tokens=tokens)).family
    assert (family.name if family else None) == expected


def test_a_call_that_no_family_reads_back_is_of_no_family():
    """Texts in the template do not outweigh what it writes."""
    signs = "<tool_call> arguments"
    assert recognise(signs, CallTurn("<tool_call>f(x)</tool_call>", (), "f", {"x": "y"})) is None
    assert recognise(signs) is FAMILIES["hermes"]
    assert recognise("nothing of the kind") is None
