"""Files and folders of rows.

A folder is one of these:

- what `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote;
- data files of one kind, in it or in its folder `data/`, read in the order of their names. A file whose name begins
  with a split (`train.jsonl`, `test-00000-of-00002.parquet`), and each file of a folder named like one (`train/…`), is
  of that split. Without `split`, a folder that has splits serves `train`.

Hidden files and files of other kinds are not looked at. Two kinds of data files are an error.
"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tiltyard._optional import require
from tiltyard.errors import ConfigurationError
from tiltyard.rows.hub import is_saved, load_saved
from tiltyard.rows.table import Arrow, Listed, RowSource

SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")
"""The names that a file or folder can have a split from where none is asked for."""

MAX_CELL = 2**31 - 1
"""Characters of a cell of a CSV file; Python's own limit of 131072 is for what is no text to learn from."""


def read_path(path: Path, split: str | None = None) -> RowSource:
    """The rows of a file or folder that is there.

    Raises:
        ConfigurationError: It cannot be read as rows, or has no such split.
        MissingExtraError: The `datasets` extra is needed.
    """
    if path.is_dir():
        return load_saved(path, split) if is_saved(path) else _read_files(_of_split(path, _data_files(path), split))
    if split is not None:
        raise ConfigurationError(f"split {split!r} was asked for, but {path} is one file, which has no splits")
    if path.suffix not in _READERS:
        raise ConfigurationError(f"{path} is of no known kind; rows are read from {', '.join(SUFFIXES)}")
    return _read_files([path])


def _data_files(folder: Path) -> list[Path]:
    homes = [folder, folder / "data"]
    homes += [entry for home in homes if home.is_dir() for entry in sorted(home.iterdir()) if entry.is_dir()]
    found = {
        entry
        for home in homes
        if home.is_dir() and (home in (folder, folder / "data") or _split_of(home.name))
        for entry in home.iterdir()
        if entry.is_file() and entry.suffix in _READERS and not entry.name.startswith(".")
    }
    kinds = sorted({entry.suffix for entry in found})
    if not found:
        raise ConfigurationError(f"the folder {folder} has no data files ({', '.join(SUFFIXES)})")
    if len(kinds) > 1:
        raise ConfigurationError(
            f"the folder {folder} has data files of {len(kinds)} kinds ({', '.join(kinds)}); name one file, or a "
            "folder with one kind"
        )
    return sorted(found)


def _of_split(folder: Path, files: list[Path], split: str | None) -> list[Path]:
    by_split: dict[str, list[Path]] = {}
    for file in files:
        wanted = split if split is not None and _begins_with(file.stem, split) else None
        name = wanted or _split_of(file.stem) or (_split_of(file.parent.name) if file.parent != folder else None) or ""
        by_split.setdefault(name, []).append(file)
    named = sorted(filter(None, by_split))
    if split is None:
        if not named:
            return files
        split = "train"
    if split not in by_split:
        raise ConfigurationError(
            f"the folder {folder} has no split {split!r}; its splits are: {', '.join(named) or 'none'}"
        )
    return by_split[split]


def _split_of(name: str) -> str | None:
    return next((split for split in SPLITS if _begins_with(name, split)), None)


def _begins_with(name: str, split: str) -> bool:
    rest = name.removeprefix(split)
    return rest != name and not rest[:1].isalpha()


def _read_files(files: Sequence[Path]) -> RowSource:
    return _READERS[files[0].suffix](files)


def _parquet(files: Sequence[Path]) -> Arrow:
    arrow, parquet = require("pyarrow", "datasets"), require("pyarrow.parquet", "datasets")
    try:
        tables = [parquet.read_table(file, memory_map=True, partitioning=None) for file in files]
        return Arrow(arrow.concat_tables(tables))
    except (OSError, arrow.ArrowException) as error:
        names = ", ".join(map(str, files))
        raise ConfigurationError(f"{names} cannot be read as Parquet with one set of columns: {error}") from error


def _json_lines(files: Sequence[Path]) -> Listed:
    lines: list[bytes] = []
    columns: dict[str, None] = {}
    for file in files:
        for number, line in enumerate(file.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
            if line.strip():
                columns.update(dict.fromkeys(_object(line, f"{file}, line {number}")))
                lines.append(line)
    return Listed(lines, list(columns))


def _json(files: Sequence[Path]) -> Listed:
    rows: list[Mapping[str, Any]] = []
    columns: dict[str, None] = {}
    for file in files:
        value = _parsed(file.read_bytes(), str(file))
        if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
            raise ConfigurationError(f"{file} must hold a list of objects, one for each row")
        for row in value:
            columns.update(dict.fromkeys(row))
            rows.append(row)
    return Listed(rows, list(columns))


def _csv(files: Sequence[Path]) -> Listed:
    rows: list[Mapping[str, Any]] = []
    columns: list[str] = []
    for number, file in enumerate(files):
        header, found = _csv_table(file)
        if number and header != columns:
            raise ConfigurationError(f"{file} has the columns {header}, and {files[0]} has {columns}; they must agree")
        columns = header
        rows += found
    return Listed(rows, columns)


def _csv_table(file: Path) -> tuple[list[str], list[Mapping[str, Any]]]:
    """A CSV file's header and rows; each value is text, as it is written, however long."""
    limit = csv.field_size_limit(MAX_CELL)
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            lines = list(_numbered(csv.reader(stream, strict=True)))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read as CSV: {error}") from error
    finally:
        csv.field_size_limit(limit)
    header = lines[0][1] if lines else []
    if len(set(header)) < len(header):
        raise ConfigurationError(f"{file} names a column twice; its columns are: {', '.join(map(repr, header))}")
    for number, cells in lines:
        if len(cells) != len(header):
            raise ConfigurationError(f"{file}, line {number}: {len(cells)} cells for {len(header)} columns")
    return header, [dict(zip(header, cells, strict=True)) for _, cells in lines[1:]]


def _numbered(reader: Any) -> Iterator[tuple[int, list[str]]]:
    for cells in reader:
        if cells:
            yield reader.line_num, cells


def _object(line: bytes, where: str) -> dict[str, Any]:
    value = _parsed(line, where)
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where}: a row is a JSON object, got {line[:100].decode(errors='replace')!r}")
    return value


def _parsed(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where} is not JSON: {error}") from error


_READERS: Mapping[str, Callable[[Sequence[Path]], RowSource]] = {
    ".parquet": _parquet,
    ".jsonl": _json_lines,
    ".json": _json,
    ".csv": _csv,
}

SUFFIXES = tuple(_READERS)
"""The kinds of files that rows are read from."""
