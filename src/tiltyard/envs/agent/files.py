"""Files of a sandbox, as text."""

import codecs
from typing import Any

from tiltyard.envs.agent.output import MAX_COMMAND_CHARS, Kept
from tiltyard.envs.agent.sdk import call, place
from tiltyard.envs.observation import MAX_OBSERVATION_CHARS
from tiltyard.errors import ToolError
from tiltyard.tools.text import clean

FILE_TIMEOUT_S = 60.0
"""How long one file may take; what never ends, such as a pipe that nobody writes to, ends here."""


def write_text(sandbox: Any, path: str, content: str) -> int:
    """Write a file; returns its size in bytes.

    Raises:
        ToolError: The path is none.
        SandboxCallError: It could not be written; ask whether the sandbox lives.
    """
    data = clean(content).encode()
    with place():
        call(f"writing {path}", sandbox.files.write, checked(path), data, request_timeout=FILE_TIMEOUT_S)
    return len(data)


def read_text(sandbox: Any, path: str) -> str:
    """Read a file; of one that is longer than an observation may be, head and tail.

    Raises:
        ToolError: The path is none.
        SandboxCallError: It could not be read; ask whether the sandbox lives.
    """
    with place():
        return call(f"reading {path}", _read, sandbox, checked(path))


def checked(path: str) -> str:
    """A path that can be asked for.

    Raises:
        ToolError: It is empty, or has a NUL in it.
    """
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        raise ToolError(f"'path' must be the path of a file, got {path!r}")
    return clean(path)


def _read(sandbox: Any, path: str) -> str:
    text = Kept()
    chunks = sandbox.files.read(path, format="stream", request_timeout=FILE_TIMEOUT_S)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    try:
        for chunk in chunks:
            text.add(decoder.decode(chunk))
            if text.chars > MAX_COMMAND_CHARS:
                return text.shown(MAX_OBSERVATION_CHARS - 100) + "\n[the file goes on]"
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()
    text.add(decoder.decode(b"", final=True))
    return text.shown(MAX_OBSERVATION_CHARS)
