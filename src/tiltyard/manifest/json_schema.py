"""The manifest as a JSON Schema: editors complete keys with it, and mark what is wrong while it is written."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tiltyard.manifest.algorithms import ALGORITHM_SECTIONS, DEFAULT_ALGORITHM
from tiltyard.manifest.keys import ALIASES
from tiltyard.manifest.loading import OF_OBJECTIVE
from tiltyard.manifest.sections import Manifest
from tiltyard.tools.parsing import FAMILIES

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_UNNAMED = {DEFAULT_ALGORITHM, *OF_OBJECTIVE.values()}
"""Algorithms that a section without a name may be of."""


def schema_text() -> str:
    """`manifest_schema` as the text of a file."""
    return f"{json.dumps(manifest_schema(), indent=1, ensure_ascii=False)}\n"


def manifest_schema() -> dict[str, Any]:
    """The schema of a manifest, aliases and `x-` keys included.

    What is true of files, of the entrypoint, or of the difference between 3 and 3.0, no schema can say: `tiltyard
    check` knows more.
    """
    schema = Manifest.model_json_schema()
    for section in _sections(schema):
        _open(section)
    parts = schema["$defs"]
    for path, name in ALIASES.items():
        of, _, alias = path.partition(".")
        for part in _of(of, parts):
            if name in part["properties"]:
                part["properties"][alias] = {**part["properties"][name], "description": f"Another word for `{name}`."}
                part["allOf"] = [*part.get("allOf", ()), {"not": {"allOf": [_given(name), _given(alias)]}}]
    parts["EnvironmentSection"]["allOf"] += _sources()
    model = parts["ModelSection"]["properties"]
    model["train"]["pattern"] = "^(full|lora|last:[1-9][0-9]*)$"
    model["tool_parser"] = {**model["tool_parser"], "anyOf": [{"enum": list(FAMILIES)}, {"type": "null"}]}
    for name, kind in ALGORITHM_SECTIONS.items():
        if name not in _UNNAMED:
            parts[kind.__name__]["required"] = ["name"]
    algorithm = schema["properties"]["algorithm"]
    kinds = [{"$ref": f"#/$defs/{kind.__name__}"} for kind in ALGORITHM_SECTIONS.values()]
    schema["properties"]["algorithm"] = {"title": algorithm["title"], "anyOf": [*kinds, {"type": "null"}]}
    return {"$schema": DIALECT, **schema, "title": "Tiltyard manifest"}


def _sections(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    yield from schema["$defs"].values()


def _of(section: str, parts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if section == "algorithm":
        yield from (parts[kind.__name__] for kind in ALGORITHM_SECTIONS.values())
    else:
        yield parts[f"{section.capitalize()}Section"]


def _open(section: dict[str, Any]) -> None:
    """Take keys that start with x-, and keys without a value, as a manifest does."""
    section["patternProperties"] = {"^x-": {}}
    required = section.get("required", ())
    for name, key in section["properties"].items():
        if name not in required:
            section["properties"][name] = _nullable(key)


def _nullable(key: dict[str, Any]) -> dict[str, Any]:
    null = {"type": "null"}
    if "$ref" in key:
        return {"description": key.get("description", ""), "anyOf": [{"$ref": key["$ref"]}, null]}
    if "anyOf" in key:
        return key if null in key["anyOf"] else {**key, "anyOf": [*key["anyOf"], null]}
    if "type" not in key:
        return key
    told = {name: value for name, value in key.items() if name in ("title", "description", "default")}
    return {**told, "anyOf": [{name: value for name, value in key.items() if name not in told}, null]}


def _given(*names: str) -> dict[str, Any]:
    """The keys are there with a value."""
    return {"required": list(names), "properties": {name: {"not": {"type": "null"}} for name in names}}


def _sources() -> list[dict[str, Any]]:
    """Exactly one source of a rollout, and what each kind of environment needs."""
    rows = {"anyOf": [_given("dataset"), _given("name")]}
    rubric = {"anyOf": [_given("rubric_file_path"), _given("reward_file_path")]}
    played = {"oneOf": [_given("entrypoint"), _given("env_url"), {"allOf": [rows, rubric]}]}
    learned = {"allOf": [rows, _given("objective"), {"not": _given("entrypoint")}, {"not": _given("env_url")}]}
    return [
        {
            "if": {"required": ["env_type"], "properties": {"env_type": {"const": "dataset"}}},
            "then": learned,
            "else": played,
        },
        {"if": _given("env_url"), "then": _given("max_turns")},
    ]
