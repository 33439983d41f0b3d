"""What a source of rows is, by a written rule, and who reads it.

1. A list of mappings is itself.
2. A text that begins with `.`, `/`, `~` or `$`, ends with a known suffix (`.parquet`, `.jsonl`, `.json`, `.csv`), or
   has more than one slash is a path. One that is not there is an error, and nothing is asked over the network.
3. Any other text is a hub id: `name` or `owner/name`, with `:config` or `@revision` behind it where that is needed.
   Where a folder of that name is there as well, it is an error that names both readings: `./name` is the folder,
   `hub:owner/name` the hub's.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tiltyard.errors import ConfigurationError, RowsNotFoundError
from tiltyard.rows.files import SUFFIXES, read_path
from tiltyard.rows.hub import load_hub
from tiltyard.rows.table import Listed, Rows

HUB = "hub:"
_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?(:[\w.-]+)?(@[\w./-]+)?")


def load_rows(
    source: str | os.PathLike[str] | Sequence[Mapping[str, Any]],
    *,
    columns: Mapping[str, str] | None = None,
    base: Path | None = None,
    split: str | None = None,
) -> Rows:
    """Load rows; the module's docstring says what a source is.

    Args:
        source: A file, a folder, a hub id, or the rows themselves.
        columns: New names of columns, all given at once, so that two can be swapped.
        base: Where relative paths start; None is the working directory.
        split: Which split of a folder or of a hub's dataset; None takes `train`, or all there is where there are no
            splits.

    Raises:
        RowsNotFoundError: The path is not there; the message has it in full.
        ConfigurationError: It cannot be read, has no such split or no rows, or the columns cannot be named so.
        MissingExtraError: The `datasets` extra, which this source needs, is not installed.
    """
    if not isinstance(source, str | os.PathLike):
        if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
            raise ConfigurationError(
                f"rows are read from a path, a hub id or a list of mappings, got {type(source).__name__} "
                f"{source!r:.200}; make a list of an iterator"
            )
        rows = Rows(listed(source, "the rows"), "the rows", columns)
    elif isinstance(source, os.PathLike) or is_path(source):
        path = row_path(os.fspath(source), base)
        rows = Rows(read_path(path, split), str(path), columns)
    else:
        name = hub_id(source, base)
        rows = Rows(load_hub(name, split), f"{name} ({split})" if split else name, columns)
    if not len(rows):
        raise ConfigurationError(f"{'split ' + repr(split) + ' of ' if split else ''}{rows.name} has no rows")
    return rows


def is_path(source: str) -> bool:
    """Whether a text names a file or folder, and not a dataset of a hub."""
    if source.startswith(HUB):
        return False
    return source.startswith((".", "/", "~", "$")) or source.endswith(SUFFIXES) or source.count("/") > 1


def row_path(written: str, base: Path | None = None) -> Path:
    """The absolute path; `~` and `$NAME` are filled in.

    Raises:
        RowsNotFoundError: It is not there.
    """
    filled = os.path.expandvars(os.path.expanduser(written))
    path = (Path(base or ".") / filled).resolve()
    if "$" in filled or not path.exists():
        raise RowsNotFoundError(f"there is no file or folder {path} (given as {written!r})")
    return path


def hub_id(source: str, base: Path | None = None) -> str:
    """The dataset of a hub that a text names, without `hub:`.

    Raises:
        ConfigurationError: It is none, or it could be a folder that is there as well.
    """
    name = source.removeprefix(HUB)
    if not _HUB_ID.fullmatch(name):
        raise ConfigurationError(
            f"{source!r} is neither a path (one begins with ./ or ends with {', '.join(SUFFIXES)}) nor the id of a "
            "dataset (owner/name)"
        )
    folder = (Path(base or ".") / name).resolve()
    if not source.startswith(HUB) and folder.exists():
        raise ConfigurationError(
            f"{source!r} is the id of a dataset on a hub, and {folder} is there as well; write './{name}' for the "
            f"folder or '{HUB}{name}' for the hub's"
        )
    return name


def listed(rows: Sequence[Mapping[str, Any]], name: str) -> Listed:
    """Rows in memory; their columns are those of all rows, in the order in which they come.

    Raises:
        ConfigurationError: One is no mapping, or names a column with something other than text.
    """
    columns: dict[str, None] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or not all(isinstance(key, str) for key in row):
            raise ConfigurationError(f"{name}: row {number} is {row!r:.200}; a row is a mapping of columns to values")
        columns.update(dict.fromkeys(row))
    return Listed(rows, list(columns))
