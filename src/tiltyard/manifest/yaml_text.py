"""YAML as manifests are written: numbers are numbers, and what YAML's versions read differently is refused.

The rules are those of YAML 1.2 with three additions. `1e-5` is a number, `on`, `off`, `yes` and `no` are not
booleans, `12:30:45` and a date are text. A plain scalar that YAML 1.1 reads as something else (`on`, `017`,
`12:30:45`, `1_000`) is refused with its cure rather than guessed; a key twice in one mapping is refused; keys are text.
What JSON could not hold (a date, a set, something that holds itself) is refused too.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

_AMBIGUOUS = "tag:tiltyard,2026:ambiguous"
_YAML = "tag:yaml.org,2002:"
_MERGE = f"{_YAML}merge"
_TAGS = {_AMBIGUOUS, _MERGE, *(f"{_YAML}{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map"))}

MAX_DIGITS = 1000
"""The most characters of a number; Python does not read or write those of some thousands."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a manifest: where, as a dotted path ("" is the whole file), and what to do about it."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


@dataclass(frozen=True, slots=True)
class ManifestText:
    """What a text holds, with everything that is wrong with how it was written."""

    value: Any
    problems: tuple[Problem, ...]


_RESOLVERS = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (
        _AMBIGUOUS,
        (
            r"on|On|ON|off|Off|OFF|yes|Yes|YES|no|No|NO"
            r"|[-+]?0[0-9]+|[-+]?[0-9][0-9_]*_[0-9_.]*|[-+]?[0-9]+(?::[0-5]?[0-9])+(?:\.[0-9]*)?"
        ),
        list("oOyYnN-+0123456789"),
    ),
    ("tag:yaml.org,2002:int", r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+|0o[0-7]+", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
    (_MERGE, r"<<", ["<"]),
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - pyyaml's own class attribute, filled below


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - pyyaml's own class attribute, filled below


for _tag, _pattern, _first in _RESOLVERS:
    for _kind in (_Loader, _Dumper):
        _kind.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern})$"), _first)
_Loader.add_constructor(_AMBIGUOUS, yaml.SafeLoader.construct_yaml_str)


def _checked(kind: str, what: str) -> None:
    """Have what is no number or boolean, though its tag says so, be an error like any other."""
    construct = yaml.SafeLoader.yaml_constructors[f"{_YAML}{kind}"]

    def constructed(loader: _Loader, node: yaml.ScalarNode) -> Any:
        if len(node.value) <= MAX_DIGITS:
            with contextlib.suppress(ValueError, KeyError):
                return construct(loader, node)
            said = f"{node.value} is no {what}"
        else:
            said = f"a {what} has at most {MAX_DIGITS} digits, got {len(node.value)}"
        raise yaml.constructor.ConstructorError(None, None, said, node.start_mark)

    _Loader.add_constructor(f"{_YAML}{kind}", constructed)


for _tag, _what in (("int", "whole number"), ("float", "number"), ("bool", "boolean")):
    _checked(_tag, _what)


def read_yaml(text: str) -> ManifestText:
    """Read one YAML document.

    A text with problems still has a value, so that whatever else is wrong can be reported together with them.
    """
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return ManifestText(
            None, (Problem("", f"line {line}: not valid YAML: it holds the character U+{error.character:04X}"),)
        )
    try:
        node = loader.get_single_node()
        if node is None:
            return ManifestText(None, ())
        if _holds_itself(node, set(), set()):
            return _not_yaml("an alias (*) is inside what it names (&)")
        problems = tuple(_problems(node, "", set()))
        return ManifestText(loader.construct_document(node), problems)
    except (yaml.YAMLError, RecursionError) as error:
        return _not_yaml(error)
    finally:
        loader.dispose()


def _not_yaml(why: str | Exception) -> ManifestText:
    where = cure = ""
    if isinstance(why, RecursionError):
        why = "it is nested too deeply"
    elif isinstance(why, yaml.MarkedYAMLError):
        mark = why.problem_mark or why.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        cure = "; indent with spaces, not tabs" if "'\\t'" in (why.problem or "") else ""
        why = why.problem or why.context or ""
    return ManifestText(None, (Problem("", f"{where}not valid YAML: {why}{cure}"),))


def write_yaml(value: Any) -> str:
    """Write plain data so that `read_yaml` gives it back."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def join_path(path: str, key: str | int) -> str:
    """Extend a dotted path by a key, or by a position in a list."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def _problems(node: yaml.Node, path: str, seen: set[int]) -> Iterator[Problem]:
    if id(node) in seen:  # an alias: what it names was looked at where it was anchored
        return
    seen.add(id(node))
    line = node.start_mark.line + 1
    if isinstance(node, yaml.ScalarNode) and node.tag == _AMBIGUOUS:
        yield Problem(
            path, f"line {line}: plain {node.value} reads differently in YAML 1.1 and 1.2; {_cure(node.value)}"
        )
    elif node.tag not in _TAGS:
        kind = node.tag.replace(_YAML, "!!")
        yield Problem(path, f"line {line}: a manifest has text, numbers, booleans, lists and mappings, got {kind}")
    elif isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            yield from _problems(item, join_path(path, position), seen)
    elif isinstance(node, yaml.MappingNode):
        yield from _mapping_problems(node, path, seen)


def _holds_itself(node: yaml.Node, above: set[int], done: set[int]) -> bool:
    """Whether a list or mapping is somewhere in itself, as an alias can say; `above` are the nodes that it is in."""
    if id(node) in above:
        return True
    if isinstance(node, yaml.ScalarNode) or id(node) in done:
        return False
    parts = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
    found = any(_holds_itself(part, above | {id(node)}, done) for part in parts)
    done.add(id(node))
    return found


def _mapping_problems(node: yaml.MappingNode, path: str, seen: set[int]) -> Iterator[Problem]:
    first_lines: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag not in ("tag:yaml.org,2002:str", _MERGE):
            shown = key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping"
            yield Problem(path, f"line {line}: a key must be text, got {shown}; put it in quotes")
            continue
        name = join_path(path, key.value)
        if key.value in first_lines and key.tag != _MERGE:
            yield Problem(
                name, f"line {line}: the key is there twice, first on line {first_lines[key.value]}; keep one"
            )
        first_lines.setdefault(key.value, line)
        yield from _problems(value, name, seen)


def _cure(plain: str) -> str:
    meaning = {"on": "true", "yes": "true", "off": "false", "no": "false"}.get(plain.lower())
    if meaning:
        return f'write {meaning}, or "{plain}" in quotes for the text'
    if ":" not in plain and "." not in plain:
        return f'write {plain.replace("_", "").lstrip("+0") or "0"}, or "{plain}" in quotes for the text'
    return f'write "{plain}" in quotes for the text, or the number without _ and :'
