"""Rows wherever they are kept: one lazy sequence with named columns and a fingerprint of its content."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, Self, overload

from tiltyard.errors import ConfigurationError


class RowSource(Protocol):
    """Where rows are kept."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in their order."""
        ...

    def __len__(self) -> int: ...

    def row(self, index: int) -> dict[str, Any]:
        """One row as a dict of its own, with a value or None for every column."""
        ...

    def fingerprint(self) -> str:
        """A hash of all the content."""
        ...


class Rows(Sequence[Mapping[str, Any]]):
    """Rows by their position; a row is made when it is asked for, and is the caller's own.

    A slice is `Rows` too, and copies nothing.

    Attributes:
        name: Where they came from, for messages.
        columns: The names of their columns.
    """

    def __init__(
        self, source: RowSource, name: str, columns: Mapping[str, str] | None = None, order: Sequence[int] | None = None
    ) -> None:
        """View a source.

        Args:
            source: Has the rows.
            name: Where they came from.
            columns: New names of columns, all given at once, so that two can be swapped; None renames nothing.
            order: The positions in the source, in the order in which they are served; None serves all as they are.

        Raises:
            ConfigurationError: A column that is renamed is not there, or two would have one name.
        """
        self.name = name
        self._source = source
        self._renamed = dict(columns or {})
        self._order: Sequence[int] = range(len(source)) if order is None else order
        self.columns = _renamed_columns(source.columns, self._renamed, name)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the rows' content, names and order; the same rows of the same kind of file have the same."""
        whole = isinstance(self._order, range) and self._order == range(len(self._source))
        text = json.dumps([self._source.fingerprint(), self.columns, None if whole else list(self._order)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def take(self, order: Sequence[int], name: str | None = None) -> Self:
        """The rows at these positions, in this order."""
        positions = [self._order[index] for index in order]
        return type(self)(self._source, name or self.name, self._renamed, positions)

    def renamed(self, columns: Mapping[str, str]) -> Self:
        """The same rows with new names for some of the columns.

        Raises:
            ConfigurationError: A column that is renamed is not there, or two would have one name.
        """
        _renamed_columns(self.columns, columns, self.name)
        both = {old: columns.get(new, new) for old, new in zip(self._source.columns, self.columns, strict=True)}
        return type(self)(self._source, self.name, both, self._order)

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> "dict[str, Any] | Self":
        if isinstance(index, slice):
            return type(self)(self._source, self.name, self._renamed, self._order[index])
        try:
            position = self._order[index]
        except IndexError:
            raise IndexError(f"{self.name} has {len(self)} rows, there is no row {index}") from None
        row = self._source.row(position)
        return {new: row[old] for old, new in zip(self._source.columns, self.columns, strict=True)}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"Rows({self.name!r}, {len(self)} rows, columns: {', '.join(self.columns)})"


class Listed:
    """Rows that are in memory as mappings, or as lines of JSON that are read when they are asked for."""

    def __init__(self, rows: Sequence[Mapping[str, Any] | bytes], columns: Sequence[str]) -> None:
        self._rows = rows
        self.columns = tuple(columns)

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> dict[str, Any]:
        """See `RowSource`."""
        kept = self._rows[index]
        row = json.loads(kept) if isinstance(kept, bytes) else kept
        return {name: row.get(name) for name in self.columns}

    def fingerprint(self) -> str:
        """See `RowSource`."""
        digest = hashlib.sha256()
        for index in range(len(self)):
            digest.update(json.dumps(self.row(index), sort_keys=True, default=repr).encode() + b"\n")
        return digest.hexdigest()


class Arrow:
    """Rows of an Arrow table: a row's values become Python's when it is asked for."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.columns: tuple[str, ...] = tuple(table.column_names)

    def __len__(self) -> int:
        return self._table.num_rows

    def row(self, index: int) -> dict[str, Any]:
        """See `RowSource`."""
        return {name: self._table.column(name)[index].as_py() for name in self.columns}

    def fingerprint(self) -> str:
        """See `RowSource`; a column at a time, so that no second copy of the table is made."""
        digest = hashlib.sha256()
        for name in self.columns:
            column = self._table.column(name)
            digest.update(f"{name} {column.type}".encode())
            for start in range(0, len(self), _HASHED_AT_ONCE):
                values = column.slice(start, _HASHED_AT_ONCE).to_pylist()
                digest.update(json.dumps(values, sort_keys=True, default=repr).encode())
        return digest.hexdigest()


_HASHED_AT_ONCE = 10_000


def _renamed_columns(columns: Sequence[str], renamed: Mapping[str, str], name: str) -> tuple[str, ...]:
    known = ", ".join(map(repr, columns)) or "none"
    if missing := [old for old in renamed if old not in columns]:
        raise ConfigurationError(
            f"columns renames {', '.join(map(repr, missing))}, which {name} does not have; its columns are: {known}"
        )
    if wrong := [new for new in renamed.values() if not isinstance(new, str) or not new]:
        raise ConfigurationError(f"a column's new name must be text, got {wrong[0]!r}")
    by_name: dict[str, str] = {}
    for old in columns:
        new = renamed.get(old, old)
        if new in by_name:
            raise ConfigurationError(
                f"columns makes {by_name[new]!r} and {old!r} of {name} both {new!r}; give one of them another name. "
                f"The columns are: {known}"
            )
        by_name[new] = old
    return tuple(by_name)
