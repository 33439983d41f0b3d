"""A real, tiny tokenizer built in code: byte-level BPE with chat templates of every temper, no download."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from tiltyard._optional import require

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TemplateName = Literal[
    "chatml", "chatml_tools", "thinking", "no_system", "alternating", "default_system", "bos", "inst", "generation"
]

END_OF_TEXT, IM_START, IM_END, BOS = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|bos|>"

_TURN = "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
_ASK = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
_CHATML = "{% for message in messages %}" + _TURN + "{% endfor %}" + _ASK

# The rules of Qwen2.5: a system section for the tools, calls rendered again from their fields, neighbouring
# tool results under one user header.
_CHATML_TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\\n' }}"
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + '\\n\\n' }}{% endif %}"
    "{{ '# Tools\\n<tools>' }}{% for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}"
    "{{ '\\n</tools><|im_end|>\\n' }}"
    "{% elif messages[0]['role'] == 'system' %}{{ '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
    "{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' and loop.first %}"
    "{% elif message['role'] == 'assistant' and message['tool_calls'] %}"
    "{{ '<|im_start|>assistant' }}{% if message['content'] %}{{ '\\n' + message['content'] }}{% endif %}"
    "{% for call in message['tool_calls'] %}{% set call = call['function'] %}"
    "{{ '\\n<tool_call>\\n{\"name\": \"' + call['name'] + '\", \"arguments\": ' }}"
    "{{ call['arguments'] | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}"
    "{% elif message['role'] == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\\n<tool_response>\\n' + message['content'] + '\\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{% else %}" + _TURN + "{% endif %}{% endfor %}" + _ASK
)

_THINKING = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' and '</think>' in message['content'] and not loop.last %}"
    "{{ '<|im_start|>assistant\\n' + message['content'].split('</think>')[-1] + '<|im_end|>\\n' }}"
    "{% else %}" + _TURN + "{% endif %}{% endfor %}" + _ASK
)

_NO_SYSTEM = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if message['role'] == 'tool' %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}"
    + _TURN
    + "{% endfor %}"
    + _ASK
)

# The rules of Mistral and Gemma: a leading system message, then strictly user, assistant, user, assistant.
_ALTERNATING = (
    "{% if messages[0]['role'] == 'system' %}"
    "{{ '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}"
    "{% for message in rest %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    + _TURN
    + "{% endfor %}"
    + _ASK
)

_DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}" + _CHATML
)

# No newline after the end token, whitespace around the content removed: Llama 3's temper.
_INST = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('Unknown role') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '<|im_start|>\\n\\n' + message['content'] | trim + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_start|>\\n\\n' }}{% endif %}"
)

# The generation prompt opens a block that the history of the conversation does not have.
_GENERATION = (
    "{% for message in messages %}"
    + _TURN
    + "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
)

TEMPLATES: dict[str, str] = {
    "chatml": _CHATML,
    "chatml_tools": _CHATML_TOOLS,
    "thinking": _THINKING,
    "no_system": _NO_SYSTEM,
    "alternating": _ALTERNATING,
    "default_system": _DEFAULT_SYSTEM,
    "bos": "{{ bos_token }}" + _CHATML,
    "inst": _INST,
    "generation": _GENERATION,
}
"""Chat templates by the rule that each stands for; `byte_tokenizer` takes the names."""


def byte_tokenizer(
    template: TemplateName | None = "chatml",
    *,
    merges: Sequence[tuple[str, str]] = (),
    add_bos: bool = False,
    add_eos: bool = False,
    extra_special_tokens: Sequence[str] = (),
    chat_template: str | None = None,
) -> "PreTrainedTokenizerFast":
    """Build the tokenizer.

    Ids 0 to 255 are the bytes, then `<|endoftext|>` (256, the padding), `<|im_start|>` (257), `<|im_end|>`
    (258, the end of a turn), `<|bos|>` (259, which nothing adds unless asked), the extra special tokens,
    and last one id for each merge.

    Args:
        template: A name of `TEMPLATES`; None builds a tokenizer without a chat template.
        merges: Pairs of ASCII strings that the BPE joins, such as `("a", "b")`, in order of priority.
        add_bos: The post-processor puts `<|bos|>` before each encoded text.
        add_eos: The post-processor puts `<|im_end|>` after each encoded text.
        extra_special_tokens: Further special tokens, such as `<tool_call>`.
        chat_template: A template of your own, in place of `template`.

    Raises:
        KeyError: `template` is not a name of `TEMPLATES`.
        MissingExtraError: transformers is not installed.
    """
    transformers = require("transformers", "train")
    specials = [END_OF_TEXT, IM_START, IM_END, BOS, *extra_special_tokens]
    named = TEMPLATES[template] if template is not None else None
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=_bpe(specials, merges, add_bos=add_bos, add_eos=add_eos),
        bos_token=BOS,
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[IM_START, *extra_special_tokens],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template or named
    return tokenizer


def _bpe(specials: list[str], merges: Sequence[tuple[str, str]], *, add_bos: bool, add_eos: bool):  # noqa: ANN202  # tokenizers.Tokenizer, which is imported lazily
    tokenizers = require("tokenizers", "train")
    vocab = {character: byte for byte, character in enumerate(_byte_characters())}
    ids = {token: len(vocab) + offset for offset, token in enumerate(specials)}
    vocab |= ids
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=list(merges)))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    before, after = (f"{BOS} " if add_bos else ""), (f" {IM_END}" if add_eos else "")
    if before or after:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{before}$A{after}",
            pair=f"{before}$A $B{after}",
            special_tokens=[(token, ids[token]) for token in (BOS, IM_END)],
        )
    return tokenizer


def _byte_characters() -> list[str]:
    """The printable character that byte-level BPE writes for each byte, in the order of the bytes."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
