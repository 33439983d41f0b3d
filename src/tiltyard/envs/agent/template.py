"""A shell command with places for a tool's arguments, each of which arrives as one word, byte for byte."""

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from tiltyard.errors import ConfigurationError, ToolError
from tiltyard.tools.schema import tool_name
from tiltyard.tools.text import clean
from tiltyard.types import ToolSchema

_HERE_DOCUMENT = re.compile(r"<<(?!<)")


class CommandTemplate:
    """A command whose `{name}` are the arguments of a tool; other braces, as in `${HOME}` or awk, stay as they are.

    Each value is quoted for the shell. It is still an argument of the program that gets it: where a value must not be
    taken for an option, write `--` before its place. A template that hands an argument to a second shell (`eval`,
    `sh -c`) hands over the shell.
    """

    def __init__(self, schema: ToolSchema, template: str) -> None:
        """Check a template against the tool's parameters.

        Raises:
            ConfigurationError: A place stands inside quotes, backticks, arithmetic or a here-document, where quoting
                its value would not protect anything; or its argument may be missing.
        """
        self.name = tool_name(schema)
        parameters = schema["function"].get("parameters") or {}
        self._properties: Mapping[str, Any] = parameters.get("properties") or {}
        if not isinstance(template, str) or not template.strip() or "\0" in template:
            raise ConfigurationError(f"the command of tool {self.name!r} must be a line for a shell, got {template!r}")
        self._template = template
        names = "|".join(re.escape(name) for name in sorted(self._properties, key=len, reverse=True))
        self._places = re.compile(r"\{(" + names + r")\}") if names else re.compile(r"(?!)")
        required = set(parameters.get("required") or ())
        for match in self._places.finditer(template):
            self._check_place(match)
            if match[1] not in required and "default" not in self._properties[match[1]]:
                raise ConfigurationError(
                    f"the command of tool {self.name!r} needs {match[0]}, which the model may leave out: make it "
                    "'required' in the schema, or give it a 'default'"
                )

    def filled(self, arguments: Mapping[str, Any]) -> str:
        """The command with these arguments, which fit the schema.

        Raises:
            ToolError: There is an argument that the schema does not name, or one with a NUL in it.
        """
        unknown = [name for name in arguments if name not in self._properties]
        if unknown:
            known = ", ".join(self._properties) or "none"
            raise ToolError(f"{self.name!r} has no argument {unknown[0]!r}; it has: {known}")
        return self._places.sub(lambda match: shlex.quote(self._word(match[1], arguments)), self._template)

    def _word(self, name: str, arguments: Mapping[str, Any]) -> str:
        value = arguments[name] if name in arguments else self._properties[name]["default"]
        text = clean(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if "\0" in text:
            raise ToolError(f"the argument {name!r} has a NUL character, which no command can be given")
        return text

    def _check_place(self, match: re.Match[str]) -> None:
        before = self._template[: match.start()]
        inside = _inside(before)
        if inside is None and before.endswith("$"):
            inside = "a shell variable"
        if inside is None and before.endswith("\\"):
            inside = "an escape"
        if inside is None and _HERE_DOCUMENT.search(_without_quoted(before)):
            inside = "a here-document"
        if inside is not None:
            raise ConfigurationError(
                f"the command of tool {self.name!r} has {match[0]} inside {inside}: its value is quoted already, so "
                f"write {match[0]} bare, e.g. printf %s {match[0]} > file"
            )


def _inside(text: str) -> str | None:
    """What is still open at the end of a piece of shell, where a quoted word would not be one."""
    open_: str | None = None
    arithmetic = backtick = False
    position = 0
    while position < len(text):
        char = text[position]
        if char == "\\" and open_ != "'":
            position += 2
            continue
        if open_ is None and char in "'\"":
            open_ = char
        elif char == open_:
            open_ = None
        elif char == "`" and open_ != "'":
            backtick = not backtick
        elif open_ != "'" and text.startswith("((", position):
            arithmetic = True
        elif open_ != "'" and text.startswith("))", position):
            arithmetic = False
        position += 1
    if open_ is not None:
        return "quotes"
    return "backticks" if backtick else "arithmetic" if arithmetic else None


def _without_quoted(text: str) -> str:
    return re.sub(r"'[^']*'|\"(?:\\.|[^\"\\])*\"", "", text)
