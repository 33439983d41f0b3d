"""The families by name."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tiltyard.errors import ConfigurationError
from tiltyard.tools.parsing import deepseek, gemma, glm, harmony, hermes, kimi, llama3, mistral, qwen3_coder, react
from tiltyard.tools.parsing.family import Family
from tiltyard.tools.parsing.reading import ParsedText
from tiltyard.types import FinishReason, ToolSchema

_BLOCK = ("<tool_call>", "</tool_call>")

HERMES = Family(
    "hermes",
    hermes.scan,
    hermes.write,
    markers=(*_BLOCK, "<function", "</function", "<parameter"),
    signs=("<tool_call>", "arguments"),
    instruction=hermes.INSTRUCTION,
)

_ALL = (
    HERMES,
    replace(HERMES, name="qwen"),
    Family(
        "qwen3_coder",
        qwen3_coder.scan,
        qwen3_coder.write,
        markers=(*_BLOCK, "<function", "</function", "<parameter", "</parameter"),
        signs=("<tool_call>", "<function=", "<parameter="),
    ),
    Family(
        "llama3",
        llama3.scan,
        llama3.write,
        markers=("<|python_tag|>",),
        signs=("<|start_header_id|>", '"parameters"'),
        stops=("<|eot_id|>", "<|eom_id|>"),
    ),
    Family(
        "mistral",
        mistral.scan,
        mistral.write,
        markers=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[TOOL_CONTENT]"),
        signs=("[TOOL_CALLS]",),
        think=mistral.THINK,
    ),
    Family(
        "deepseek",
        deepseek.scan,
        deepseek.write,
        markers=(deepseek.OPEN, deepseek.CLOSE, deepseek.CALL_OPEN, deepseek.CALL_CLOSE, deepseek.SEPARATOR),
        signs=(deepseek.OPEN, deepseek.SEPARATOR),
    ),
    Family(
        "glm",
        glm.scan,
        glm.write,
        markers=(*_BLOCK, "<arg_", "</arg_"),
        signs=("<tool_call>", "<arg_key>", "<arg_value>"),
    ),
    Family(
        "kimi",
        kimi.scan,
        kimi.write,
        markers=("<|tool_call",),
        signs=("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"),
    ),
    Family(
        "harmony",
        harmony.scan,
        harmony.write,
        markers=(
            harmony.START,
            harmony.CHANNEL,
            harmony.CONSTRAIN,
            harmony.MESSAGE,
            harmony.END,
            harmony.CALL,
            harmony.RETURN,
        ),
        signs=(harmony.CHANNEL, harmony.CALL),
        think=harmony.THINK,
        stops=(harmony.CALL, harmony.RETURN),
    ),
    Family(
        "gemma",
        gemma.scan,
        gemma.write,
        markers=("<|channel>", gemma.OPEN, gemma.CLOSE, gemma.QUOTE, gemma.OLD_OPEN, gemma.OLD_CLOSE, gemma.OLD_QUOTE),
        signs=(gemma.OPEN, "call:"),
        stops=("<turn|>", "<|tool_response>", "<end_of_turn>", "<start_function_response>"),
        think=gemma.THINK,
    ),
    Family("react", react.scan, react.write),
)

FAMILIES: Mapping[str, Family] = {family.name: family for family in _ALL}
"""Every family by its name."""


def family_named(name: str | Family) -> Family:
    """The family of this name; one of your own is taken as it is.

    Raises:
        ConfigurationError: There is none; lists those there are.
    """
    if isinstance(name, Family):
        return name
    if name not in FAMILIES:
        raise ConfigurationError(f"no parser for the family {name!r}; there are: {', '.join(FAMILIES)}")
    return FAMILIES[name]


def parse_text(
    text: str,
    finish_reason: FinishReason = "stop",
    *,
    family: str | Family = "hermes",
    thinking_open: bool = False,
    reasoning: str = "",
    tools: Sequence[ToolSchema] = (),
) -> ParsedText:
    """Take a sampled text apart in the way of its family; see `Family.parse`.

    Raises:
        ConfigurationError: No parser is known for the family; lists those that are.
    """
    return family_named(family).parse(
        text, finish_reason, thinking_open=thinking_open, reasoning=reasoning, tools=tools
    )
