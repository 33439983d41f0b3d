"""One command in a sandbox, with its time, its output and its end under control."""

import inspect
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from tiltyard.envs.agent.output import MAX_COMMAND_CHARS, TIMED_OUT, CommandResult, Kept
from tiltyard.envs.agent.sdk import Provider, SandboxCallError, call, place

GRACE_S = 10.0
"""How much later than the command's own limit the client gives up waiting for its end."""

KILL_AFTER_S = 2
"""A command that does not end when it is told to is killed this much later."""

MAX_ARGUMENT_BYTES = 96 * 1024
"""Linux takes no argument of 128 KiB or more: a longer command goes through a file."""


@dataclass(slots=True)
class _Run:
    """A command that is under way, and what it has printed."""

    stdout: Kept
    stderr: Kept
    pid: int | None = None
    exit_code: int | None = None
    too_long: bool = False


def run(provider: Provider, sandbox: Any, command: str, cwd: str | None, timeout_s: float) -> CommandResult:
    """Run a command with bash; stdin is closed, and its whole process group ends with it at the time limit.

    Args:
        provider: The server's.
        sandbox: The SDK's handle.
        command: Passed to bash as it is.
        cwd: Where it starts; None takes the template's.
        timeout_s: When it is stopped; what it had printed is kept.

    Raises:
        SandboxCallError: The SDK raised something other than that the command ended; ask whether the sandbox lives.
    """
    going = _Run(Kept(), Kept())
    with place(), _script(sandbox, command) as line:
        began = time.monotonic()
        bounded = f"exec timeout -k {KILL_AFTER_S} {timeout_s:g} {line} </dev/null"
        try:
            call("running a command", _follow, going, sandbox, bounded, cwd, timeout_s)
        except SandboxCallError as error:
            late = time.monotonic() - began >= timeout_s
            if not (late and going.pid is not None and provider.is_timeout(error.__cause__)):
                raise
            _stop(sandbox, going.pid)
            going.exit_code = TIMED_OUT
        if going.too_long and going.pid is not None:
            _stop(sandbox, going.pid)
        took_s = time.monotonic() - began
    return _result(going, took_s, timeout_s)


def _result(going: _Run, took_s: float, timeout_s: float) -> CommandResult:
    if going.too_long:
        stopped = f"stopped after {MAX_COMMAND_CHARS // 2**20} MiB of output"
        return CommandResult(going.stdout, going.stderr, -1, stopped)
    # 124: it ended when it was told to; 137 or -1: it had to be killed.
    if going.exit_code in (TIMED_OUT, 137, -1) and took_s >= timeout_s:
        stopped = f"stopped at its time limit of {timeout_s:g} s"
        return CommandResult(going.stdout, going.stderr, TIMED_OUT, stopped, timed_out=True)
    return CommandResult(going.stdout, going.stderr, going.exit_code or 0)


def _follow(going: _Run, sandbox: Any, line: str, cwd: str | None, timeout_s: float) -> None:
    """Start the command in the background and read it to its end, or to the most that is read."""
    start = sandbox.commands.run
    options: dict[str, Any] = {"background": True, "timeout": timeout_s + GRACE_S}
    if cwd is not None:
        options["cwd"] = cwd
    if "retain_output" in inspect.signature(start).parameters:
        options["retain_output"] = False
    handle = start(line, **options)
    going.pid = handle.pid
    try:
        for out, err, _ in handle:
            going.stdout.add(out or "")
            going.stderr.add(err or "")
            if going.stdout.chars + going.stderr.chars > MAX_COMMAND_CHARS:
                going.too_long = True
                return
        going.exit_code = _exit_code(handle)
    finally:
        handle.disconnect()  # an unread handle keeps its connection


def _exit_code(handle: Any) -> int:
    """The code of a command whose output was read to its end."""
    try:
        return call("the end of a command", handle.wait).exit_code
    except SandboxCallError as error:
        code = getattr(error.__cause__, "exit_code", None)  # the SDK raises each code but 0
        if not isinstance(code, int):
            raise
        return code


def _stop(sandbox: Any, pid: int) -> None:
    """Kill the command's process group; `timeout` made it the leader of one."""
    line = f"kill -KILL -- -{pid} 2>/dev/null; kill -KILL {pid} 2>/dev/null; true"
    call("stopping a command", sandbox.commands.run, line, timeout=GRACE_S)


@contextmanager
def _script(sandbox: Any, command: str) -> Iterator[str]:
    """The command as words for a shell; one that is too long for an argument lies in a file meanwhile."""
    if len(command.encode()) <= MAX_ARGUMENT_BYTES:
        yield f"bash -c {shlex.quote(command)}"
        return
    path = f"/tmp/.command-{uuid4().hex}.sh"  # noqa: S108  # in the sandbox, of a name that nobody can guess
    call("writing a long command", sandbox.files.write, path, command)
    yield f"bash {path}"
    call("removing a long command", sandbox.files.remove, path)
