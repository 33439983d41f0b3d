"""TOML as manifests are written: the same values as YAML's, and the same words for what is wrong."""

import datetime
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from tiltyard.manifest.yaml_text import ManifestText, Problem, join_path

_DATES = (datetime.date, datetime.time)  # a datetime is a date
BITS = 64
_PLACE = re.compile(r"(.*) \((at [^()]*)\)", re.DOTALL)


def read_toml(text: str) -> ManifestText:
    """Read a TOML document; dates, which a manifest has no use for, are refused with their cure."""
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        placed = _PLACE.fullmatch(str(error))
        what, where = (placed[1], placed[2].removeprefix("at ") + ": ") if placed else (str(error), "")
        what = f"{what[:1].lower()}{what[1:]}"
        return ManifestText(None, (Problem("", f"{where}not valid TOML: {what}"),))
    except (ValueError, RecursionError) as error:
        what = "it is nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"
        return ManifestText(None, (Problem("", f"not valid TOML: {what}"),))
    return ManifestText(value or None, tuple(_refused(value, "")))


def _refused(value: Any, path: str) -> Iterator[Problem]:
    if isinstance(value, _DATES):
        yield Problem(path, f'{value.isoformat()} is a date; write "{value.isoformat()}" in quotes for the text')
    elif isinstance(value, int) and value.bit_length() > BITS:
        yield Problem(path, f"is a whole number of {value.bit_length()} bits; TOML has them up to {BITS}")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _refused(inner, join_path(path, key))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _refused(inner, join_path(path, position))
