"""What opens an episode and what follows a sampled turn, over chat templates of every temper."""

import pytest

from tiltyard.errors import TemplateError
from tiltyard.testing.tokenizer import BOS, IM_END, TEMPLATES, byte_tokenizer
from tiltyard.tokens.probes import TEXT_SHAPES, TOOL_SHAPES
from tiltyard.tokens.renderer import TemplateRenderer, make_renderer
from tiltyard.tokens.transcript import Transcript

STEADY = [name for name in TEMPLATES if name not in ("thinking", "generation")]
END, NEWLINE = 258, 10
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Guess."}
LOWER = {"role": "user", "content": "Lower."}
ANSWER = {"role": "assistant", "content": "Hi"}
ADD = {
    "type": "function",
    "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
}


def result(text, call_id="call_1"):
    return {"role": "tool", "content": text, "tool_call_id": call_id, "name": "add"}


def text_of(renderer, ids):
    return renderer.encoder.decode(ids)


def stock(tokenizer, messages, **options):
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize("shape", [*TEXT_SHAPES, *TOOL_SHAPES], ids=lambda shape: shape.name)
def test_opening_sampled_and_bridge_are_the_full_render(name, shape):
    """For plain texts the appended ids are those of one render of the whole conversation."""
    renderer = TemplateRenderer(byte_tokenizer(name))
    whole = renderer.full([*shape.before, shape.answer, *shape.new], shape.tools)
    opening = renderer.opening(shape.before, shape.tools)
    sampled = whole[len(opening) : whole.index(END, len(opening)) + 1]
    assert opening + sampled + renderer.bridge(sampled, shape.new, shape.tools) == whole


def test_the_opening_is_what_transformers_renders():
    """Where the template can say everything, nothing is folded or added."""
    tokenizer = byte_tokenizer("chatml_tools")
    conversation = [SYSTEM, USER, ANSWER, LOWER]
    assert TemplateRenderer(tokenizer).opening(conversation, [ADD]) == stock(tokenizer, conversation, tools=[ADD])


@pytest.mark.parametrize(
    ("sampled", "first"),
    [
        ((72, 105, END), [NEWLINE]),
        ((72, 105), [END, NEWLINE]),
        ((), [END, NEWLINE]),
        ((END,), [NEWLINE]),
    ],
    ids=["ended", "stop string or length", "empty", "only the end token"],
)
def test_the_bridge_starts_after_the_end_of_the_turn_and_adds_it_only_where_it_is_missing(sampled, first):
    """TK-05, T18: the template's newline is kept, and no token is doubled."""
    renderer = TemplateRenderer(byte_tokenizer())
    bridge = renderer.bridge(sampled, [result("4")])
    assert (
        text_of(renderer, bridge) == text_of(renderer, first) + "<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("sampled", [(72, 105, END), (72, 105), (), (END,)])
def test_what_the_bridge_adds_is_never_trained(sampled):
    """TK-05: an added end token and the newline have mask False and no log-probability; sampled ones keep theirs."""
    renderer, transcript = TemplateRenderer(byte_tokenizer()), Transcript()
    transcript.observe(renderer.opening([USER]))
    before = len(transcript)
    transcript.sample(sampled, [-4.6] * len(sampled))
    transcript.observe(renderer.bridge(sampled, [result("4")]))
    after = before + len(sampled)
    assert transcript.mask[before:after] == [True] * len(sampled)
    assert transcript.logprobs[before:after] == [-4.6] * len(sampled)
    assert not any(transcript.mask[after:])
    assert set(transcript.logprobs[after:]) == {None}


def test_the_last_messages_can_be_added_without_a_generation_prompt():
    """An episode's last observation is recorded, and nobody is asked to answer it."""
    renderer = TemplateRenderer(byte_tokenizer())
    bridge = renderer.bridge((END,), [LOWER], generation_prompt=False)
    assert text_of(renderer, bridge) == "\n<|im_start|>user\nLower.<|im_end|>\n"


def test_sampled_ids_are_never_encoded_again():
    """TK-01: [a, b] stays two ids over three turns though "ab" would encode to one."""
    tokenizer = byte_tokenizer(merges=[("a", "b")])
    renderer, transcript = TemplateRenderer(tokenizer), Transcript()
    assert len(tokenizer.encode("ab")) == 1
    transcript.observe(renderer.opening([USER]))
    for _ in range(3):
        seen = list(transcript.ids)
        transcript.sample((97, 98), (-1.0, -2.0))
        assert renderer.parse((97, 98), "stop").text == "ab"
        transcript.observe(renderer.bridge((97, 98), [LOWER]))
        assert transcript.ids[: len(seen) + 2] == [*seen, 97, 98]
        assert len(transcript.ids) == len(transcript.mask) == len(transcript.logprobs) == len(transcript.turn)
    sampled = [(i, p) for i, p, m in zip(transcript.ids, transcript.logprobs, transcript.mask, strict=True) if m]
    assert sampled == [(97, -1.0), (98, -2.0)] * 3


def test_exactly_one_bos_when_template_and_tokenizer_both_write_it():
    """TK-04 a: the template's BOS stands, the post-processor's does not come on top; bridges have none."""
    tokenizer = byte_tokenizer("bos", add_bos=True)
    renderer = TemplateRenderer(tokenizer)
    ids = renderer.opening([USER]) + renderer.bridge((), [LOWER])
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids[0] == tokenizer.bos_token_id


def test_the_prompt_length_is_the_number_of_ids():
    """TK-04 c: transformers 5 gives a mapping for a tokenized chat; ids are ids here."""
    opening = TemplateRenderer(byte_tokenizer()).opening([USER])
    assert len(opening) == len("user\nGuess.\nassistant\n") + 3
    assert all(type(index) is int for index in opening)


def test_a_tokenizer_that_appends_its_end_token_puts_none_before_the_answer():
    """TK-04 d: no EOS between prompt and completion."""
    renderer = TemplateRenderer(byte_tokenizer(add_eos=True))
    assert renderer.opening([USER])[-1] == NEWLINE
    assert renderer.bridge((END,), [LOWER])[-1] == NEWLINE


@pytest.mark.parametrize("name", ["no_system", "alternating", "inst"])
def test_a_system_message_that_the_template_refuses_opens_the_first_user_message(name):
    """TK-07: folding is the same in every call, and says both texts."""
    renderer = TemplateRenderer(byte_tokenizer(name))
    opening = text_of(renderer, renderer.opening([SYSTEM, USER]))
    assert opening.index("Be brief.") < opening.index("Guess.")
    if not renderer.template.rules.system:
        assert "user\nBe brief.\n\nGuess." in opening


def test_neighbours_are_joined_where_the_template_wants_alternation():
    """TK-07: two user messages become one, in the opening and in a bridge alike."""
    renderer = TemplateRenderer(byte_tokenizer("alternating"))
    for ids in (renderer.opening([USER, LOWER]), renderer.bridge((END,), [USER, LOWER])):
        assert "user\nGuess.\n\nLower.<|im_end|>" in text_of(renderer, ids)


@pytest.mark.parametrize("name", ["no_system", "alternating", "inst"])
def test_tool_results_are_user_text_where_the_template_has_no_tool_role(name):
    """TK-07: neighbouring results share one user message, in the Hermes form."""
    renderer = TemplateRenderer(byte_tokenizer(name))
    bridge = text_of(renderer, renderer.bridge((END,), [result("4"), result("5", "call_2")]))
    block = "<tool_response>\n4\n</tool_response>\n<tool_response>\n5\n</tool_response><|im_end|>"
    assert block in bridge
    assert bridge.count("user") == 1


def test_the_close_of_a_call_is_part_of_what_was_sampled():
    """The bridge begins at the end of the turn, also where `</tool_call>` is a special token."""
    tokenizer = byte_tokenizer("chatml_tools", extra_special_tokens=["<tool_call>", "</tool_call>"])
    renderer = TemplateRenderer(tokenizer, tools=True)
    assert renderer.bridge((72,), [result("4")])[:2] == [END, NEWLINE]
    assert renderer.bridge((72, END), [result("4")])[0] == NEWLINE
    assert renderer.stop_ids == {END}


def test_a_user_message_right_after_a_tool_result_is_kept():
    """TK-07: what the environment says after a result reaches the model, joined where the template alternates."""
    for name in STEADY:
        renderer = TemplateRenderer(byte_tokenizer(name))
        bridge = text_of(renderer, renderer.bridge((END,), [result("4"), LOWER]))
        assert bridge.index("4") < bridge.index("Lower.")


def test_a_new_message_does_not_bring_the_default_system_text():
    """TK-07: the text that the template writes when no system message is given belongs to the opening only."""
    renderer = TemplateRenderer(byte_tokenizer("default_system"))
    assert "helpful assistant" in text_of(renderer, renderer.opening([USER]))
    assert "helpful assistant" not in text_of(renderer, renderer.bridge((END,), [LOWER]))


@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize("content", [None, ""])
def test_content_null_is_empty(name, content):
    """TK-07: never "None", never an error, also beside tool calls."""
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    calling = {"role": "assistant", "content": content, "tool_calls": [call]}
    renderer = TemplateRenderer(byte_tokenizer(name))
    opening = text_of(renderer, renderer.opening([USER, calling, result("4")], [ADD]))
    assert "None" not in opening
    assert '"name": "add"' in opening


@pytest.mark.parametrize("arguments", ['{"city": "Oslo", "b": 1, "a": "é"}', {"city": "Oslo", "b": 1, "a": "é"}])
@pytest.mark.parametrize("name", ["chatml_tools", "chatml"])
def test_arguments_are_a_mapping_for_the_template(name, arguments):
    """A JSON string and a mapping render alike; key order and non-ASCII text stay."""
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    renderer = TemplateRenderer(byte_tokenizer(name))
    opening = text_of(renderer, renderer.opening([USER, {"role": "assistant", "content": "", "tool_calls": [call]}]))
    assert '"arguments": {"city": "Oslo", "b": 1, "a": "é"}' in opening


def test_tool_schemas_end_the_system_message_where_the_template_has_no_branch_for_them():
    """T27: the tools are in the prompt whatever the template, after the system text, given or default."""
    renderer = TemplateRenderer(byte_tokenizer("chatml"))
    opening = text_of(renderer, renderer.opening([SYSTEM, USER], [ADD]))
    assert opening.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert '{"type": "function", "function": {"name": "add"' in opening
    default = TemplateRenderer(byte_tokenizer("default_system"))
    assert "You are a helpful assistant.\n\n# Tools\n" in text_of(default, default.opening([USER], [ADD]))


def test_tool_schemas_are_left_to_a_template_that_knows_them():
    """The template's own form wins where it has one."""
    renderer = TemplateRenderer(byte_tokenizer("chatml_tools"))
    opening = text_of(renderer, renderer.opening([USER], [ADD]))
    assert opening.count('"name": "add"') == 1
    assert "You may call one or more functions" not in opening


def test_text_parts_are_joined():
    """A content of OpenAI text parts is their text."""
    renderer = TemplateRenderer(byte_tokenizer())
    parts = [{"type": "text", "text": "Gue"}, {"type": "text", "text": "ss."}]
    assert renderer.opening([{"role": "user", "content": parts}]) == renderer.opening([USER])


def test_a_part_that_is_not_text_is_refused():
    """An image has no tokens here, and is not dropped in silence."""
    renderer = TemplateRenderer(byte_tokenizer())
    with pytest.raises(TemplateError, match="must be text or a list of text parts"):
        renderer.opening([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])


@pytest.mark.parametrize("given", [{"tokenize": True}, {"add_generation_prompt": False}, {"tools": []}, [1]])
def test_arguments_of_a_render_that_are_ours_are_refused_by_name(given):
    """Each would change what the bridges are derived from, or be given twice."""
    with pytest.raises(TemplateError, match="chat_template_kwargs"):
        make_renderer(byte_tokenizer(), chat_template_kwargs=given)


@pytest.mark.parametrize("fault", ["1 / (message.content|length - 3)", "message.content.nothing()", "[].pop()"])
def test_whatever_a_template_raises_is_its_refusal(fault):
    """It was not written for this text; nothing of the library is broken."""
    odd = "{% for message in messages %}{% if message.content == 'odd' %}{{ FAULT }}{% endif %}{% endfor %}"
    renderer = make_renderer(byte_tokenizer(chat_template=odd.replace("FAULT", fault) + TEMPLATES["chatml"]))
    with pytest.raises(TemplateError, match="refused a conversation"):
        renderer.bridge((), [{"role": "user", "content": "odd"}])


def test_a_tokenizer_without_a_chat_template_is_refused_with_the_cure():
    """The message says what to set."""
    with pytest.raises(TemplateError, match=r"has no chat template.*set tokenizer\.chat_template"):
        make_renderer(byte_tokenizer(None))


def test_a_conversation_that_the_template_refuses_names_its_rule():
    """The template's own words are in the error."""
    renderer = TemplateRenderer(byte_tokenizer("alternating"))
    with pytest.raises(TemplateError, match=r"roles must alternate"):
        renderer.opening([ANSWER, USER])


def test_a_template_that_renders_a_message_by_its_place_is_refused():
    """A bridge that differs from the full render would train on what no one rendered."""
    numbered = (
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + ' ' + (loop.index | string) + '\\n' + message['content'] }}"
        "{{ '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    with pytest.raises(TemplateError, match=r"cannot be told from this chat template \(system message, user reply\)"):
        make_renderer(byte_tokenizer(chat_template=numbered))


def test_template_arguments_reach_the_template():
    """Such as `enable_thinking`."""
    template = "{{ tone }}" + TEMPLATES["chatml"]
    renderer = make_renderer(byte_tokenizer(chat_template=template), chat_template_kwargs={"tone": "calm"})
    assert renderer.opening([USER])[:4] == list(b"calm")


def test_the_turn_ends_with_the_template_s_token_or_the_tokenizer_s():
    """Both stop sampling; a base model may use either."""
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = "<|endoftext|>"
    renderer = TemplateRenderer(tokenizer)
    assert renderer.stop_ids == {256, tokenizer.convert_tokens_to_ids(IM_END)}
    assert renderer.bridge((72, 256), [LOWER])[:2] == [END, NEWLINE]


def test_a_template_without_an_end_token_is_bridged_by_its_text():
    """Plain-text templates work; only the tokenizer's end token stops the turn."""
    plain = (
        "{% for message in messages %}{{ '[' + message['role'] + '] ' + message['content'] + '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"
    )
    renderer = TemplateRenderer(byte_tokenizer(chat_template=plain))
    assert renderer.stop_ids == {END}
    assert text_of(renderer, renderer.bridge((72,), [LOWER])) == "\n[user] Lower.\n[assistant] "


def test_bos_spelled_by_an_environment_is_text():
    """TK-04 with T19: a BOS in an observation is not a second BOS."""
    tokenizer = byte_tokenizer("bos", add_bos=True)
    opening = TemplateRenderer(tokenizer).opening([{"role": "user", "content": BOS}])
    assert opening.count(tokenizer.bos_token_id) == 1


def test_call_ids_fit_a_template_that_wants_nine_characters():
    """Some templates refuse other ids; the ids of the conversation stay as they are."""
    strict = TEMPLATES["chatml_tools"].replace(
        "{% set call = call['function'] %}",
        "{% if call['id'] | length != 9 %}{{ raise_exception('ids of nine characters') }}{% endif %}"
        "{% set call = call['function'] %}",
    )
    renderer = make_renderer(byte_tokenizer(chat_template=strict), tools=True)
    assert not renderer.template.rules.any_call_id
    assert text_of(renderer, renderer.bridge((72,), [result("4")])).startswith("<|im_end|>\n<|im_start|>user")


def test_where_nothing_ends_a_turn_the_next_header_does():
    """Such a header stops sampling, and is not doubled when it was sampled."""
    headers = (
        "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
    )
    tokenizer = byte_tokenizer(chat_template=headers, extra_special_tokens=["<|user|>", "<|assistant|>", "<|system|>"])
    renderer, header = make_renderer(tokenizer), tokenizer.convert_tokens_to_ids("<|user|>")
    assert renderer.stop_ids == {END, header}
    assert text_of(renderer, renderer.bridge((72, header), [LOWER])) == "\nLower.<|assistant|>\n"
    assert renderer.bridge((72,), [LOWER])[0] == header


def test_a_turn_that_ends_otherwise_in_history_keeps_its_sampled_end():
    """The last turn's own end token stops sampling and is not replaced; history's end is added where none was."""
    two_ends = (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
        "{{ '<|return|>' if loop.last and message['role'] == 'assistant' and not add_generation_prompt "
        "else '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    tokenizer = byte_tokenizer(chat_template=two_ends, extra_special_tokens=["<|return|>"])
    tokenizer.eos_token = "<|return|>"
    renderer = TemplateRenderer(tokenizer)
    last = tokenizer.convert_tokens_to_ids("<|return|>")
    assert (renderer.stop_ids, renderer.rewrites_history) == ({last}, "")
    assert text_of(renderer, renderer.bridge((72, last), [LOWER])).startswith("<|im_start|>user\n")
    assert text_of(renderer, renderer.bridge((72,), [LOWER])).startswith("<|im_end|><|im_start|>user\n")
