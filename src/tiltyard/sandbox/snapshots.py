"""Snapshots: the files of a sandbox at one moment, from which others are made."""

import secrets
from collections.abc import Container
from dataclasses import dataclass

from tiltyard.sandbox.box_baking import Baked
from tiltyard.sandbox.box_model import TEMPLATE_NAME, Template
from tiltyard.sandbox.refusal import RefusedError

MAX_SNAPSHOTS = 64
"""They lie on this machine's disk until they are deleted, or the server ends."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of one sandbox.

    Attributes:
        id: Names it; so does `name`, where it has one.
        name: What it was called; a later one of this name takes its place under it.
        sandbox_id: The sandbox that it was taken of.
        template: What that sandbox was made from.
        files: Where they lie.
    """

    id: str
    name: str | None
    sandbox_id: str
    template: Template
    files: Baked

    @property
    def names(self) -> list[str]:
        """The names that it can be asked for by, beside its id."""
        return [] if self.name is None else [self.name]


class Snapshots:
    """Those of one server, oldest first."""

    def __init__(self) -> None:
        self._kept: dict[str, Snapshot] = {}

    def __contains__(self, snapshot: Snapshot) -> bool:
        return snapshot.id in self._kept

    def find(self, asked: str) -> Snapshot | None:
        """The snapshot of this id, or the newest of this name."""
        named = [each for each in self._kept.values() if each.name == asked]
        return self._kept.get(asked) or (named[-1] if named else None)

    def check(self, name: str | None, taken: Container[str]) -> None:
        """See that one more can be kept under a name.

        Raises:
            RefusedError: There are too many, or a template is called so, or nothing can be.
        """
        if len(self._kept) >= MAX_SNAPSHOTS:
            raise RefusedError("resource_exhausted", f"the server keeps {MAX_SNAPSHOTS} snapshots; delete one first")
        if name is not None and (not name or not set(name) <= TEMPLATE_NAME):
            raise RefusedError("invalid_argument", f"a snapshot's name has letters, digits and -_.:/, got {name!r}")
        if name is not None and name in taken:
            raise RefusedError("already_exists", f"{name!r} is a template of this server; give another name")

    def add(self, sandbox_id: str, name: str | None, template: Template, files: Baked) -> Snapshot:
        """Keep one more."""
        snapshot = Snapshot(f"snapshot-{secrets.token_hex(8)}", name, sandbox_id, template, files)
        self._kept[snapshot.id] = snapshot
        return snapshot

    def wanted(self, sandbox_id: str | None, name: str | None) -> list[Snapshot]:
        """Those of a sandbox, of a name; None = of any."""
        return [
            each
            for each in self._kept.values()
            if sandbox_id in (None, each.sandbox_id) and (name is None or name in (each.name, each.id))
        ]

    def delete(self, asked: str) -> bool:
        """Keep one no longer, by its id or name; False when there is none. Sandboxes made from it stay."""
        found = self.find(asked)
        if found is None:
            return False
        del self._kept[found.id]
        found.files.remove()
        return True
