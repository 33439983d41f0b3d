"""What the file calls say about a file, as the protocol writes it."""

from datetime import UTC, datetime
from typing import Any

from tiltyard.sandbox.box_model import Entry, WatchEvent

FILE_TYPES = {"file": "FILE_TYPE_FILE", "directory": "FILE_TYPE_DIRECTORY", "symlink": "FILE_TYPE_SYMLINK"}
UPLOAD_TYPES = {"file": "file", "directory": "dir", "symlink": "symlink"}
EVENT_TYPES = {
    "create": "EVENT_TYPE_CREATE",
    "write": "EVENT_TYPE_WRITE",
    "remove": "EVENT_TYPE_REMOVE",
    "rename": "EVENT_TYPE_RENAME",
    "chmod": "EVENT_TYPE_CHMOD",
}

_FIRST_S, _LAST_S = -62_135_596_800.0, 253_402_300_799.0


def entry_json(entry: Entry) -> dict[str, Any]:
    """A file, as the remote calls answer it; long numbers are strings."""
    written: dict[str, Any] = {
        "name": entry.name,
        "type": FILE_TYPES.get(entry.kind, "FILE_TYPE_UNSPECIFIED"),
        "path": entry.path,
        "size": str(entry.size),
        "mode": entry.mode,
        "permissions": entry.permissions,
        "owner": entry.owner,
        "group": entry.group,
        "modifiedTime": timestamp(entry.modified_ns / 1e9),
    }
    if entry.symlink_target is not None:
        written["symlinkTarget"] = entry.symlink_target
    if entry.metadata:
        written["metadata"] = dict(entry.metadata)
    return written


def uploaded_json(entry: Entry) -> dict[str, Any]:
    """A file that was written, as the upload answers it."""
    written: dict[str, Any] = {"name": entry.name, "type": UPLOAD_TYPES.get(entry.kind, "file"), "path": entry.path}
    if entry.metadata:
        written["metadata"] = dict(entry.metadata)
    return written


def event_json(event: WatchEvent, entry: Entry | None) -> dict[str, Any]:
    """A change in a watched folder; `entry` is the file that it happened to, if that is asked for and there."""
    written: dict[str, Any] = {"name": event.name, "type": EVENT_TYPES[event.kind]}
    if entry is not None:
        written["entry"] = entry_json(entry)
    return written


def timestamp(seconds: float) -> str:
    """A time of day as the protocol writes it; one that no calendar has becomes the first or last that it has.

    A file's time may be any number: `touch` sets it.
    """
    seconds = max(_FIRST_S, min(seconds, _LAST_S))
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
