"""The remote calls on processes: commands are started, followed, fed, resized and signalled."""

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tiltyard._boundary import shown
from tiltyard.errors import BoxError
from tiltyard.sandbox.access import sandbox_of, user_of
from tiltyard.sandbox.box import Box
from tiltyard.sandbox.box_model import Exited, ProcessInfo
from tiltyard.sandbox.box_process import Process
from tiltyard.sandbox.fields import (
    checked_text,
    digits,
    flag,
    integer,
    nested,
    optional_text,
    text,
    texts,
    variables,
)
from tiltyard.sandbox.framing import FrameStream, first_message, frame, messages, raw_frame, unary_request
from tiltyard.sandbox.live import Sandboxes
from tiltyard.sandbox.live_sandbox import MAX_TIMEOUT_S
from tiltyard.sandbox.refusal import RefusedError, sandbox_ended

KEEPALIVE_S = 50.0
KILL_WAIT_S, KILL_POLL_S = 1.0, 0.002
MIN_KEEPALIVE_S = 1.0

SIGNALS = {"SIGNAL_SIGTERM": 15, "SIGNAL_SIGKILL": 9}
SIGKILL = 9
SIGNAL_WORDS = {9: "killed", 15: "terminated", 11: "segmentation fault", 6: "aborted", 2: "interrupt"}


class Commands:
    """Answers `process.Process`."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        self._killing: set[asyncio.Task[None]] = set()

    async def start(self, request: Request) -> Response:
        """Start a command and stream what it says; past its time-out it is killed, whoever still listens."""
        sandbox = await sandbox_of(request, self._sandboxes)
        timeout_s = _timeout_s(request)
        process = await _started(sandbox.box, await first_message(request), user_of(request))
        if timeout_s is None:
            return FrameStream(_followed(process, _keepalive_s(request)))
        late = asyncio.get_running_loop().call_later(timeout_s, self._late, process)
        return FrameStream(_in_time(process, late, _followed(process, _keepalive_s(request), timeout_s)))

    async def connect(self, request: Request) -> Response:
        """Stream what a running command says from now on."""
        sandbox = await sandbox_of(request, self._sandboxes)
        process = _selected(sandbox.box, await first_message(request))
        return FrameStream(_followed(process, _keepalive_s(request), _timeout_s(request)))

    async def list(self, request: Request) -> Response:
        """The commands that run."""
        sandbox = await sandbox_of(request, self._sandboxes)
        return JSONResponse({"processes": [_described(process) for process in sandbox.box.processes()]})

    async def send_input(self, request: Request) -> Response:
        """Write to a command's standard input, or type on its terminal."""
        sandbox = await sandbox_of(request, self._sandboxes)
        body = await unary_request(request)
        await _selected(sandbox.box, body).send_stdin(_input(nested(body, "input")))
        return JSONResponse({})

    async def stream_input(self, request: Request) -> Response:
        """As `send_input`, a stream of them; the first message selects the command."""
        sandbox = await sandbox_of(request, self._sandboxes)
        process: Process | None = None
        async for message in messages(request):
            if "start" in message:
                process = _selected(sandbox.box, nested(message, "start"))
            elif "data" in message:
                if process is None:
                    raise RefusedError("invalid_argument", "the first message of the stream must select a process")
                await process.send_stdin(_input(nested(nested(message, "data"), "input")))
        return FrameStream(_once({}))

    async def close_input(self, request: Request) -> Response:
        """End a command's standard input."""
        sandbox = await sandbox_of(request, self._sandboxes)
        await _selected(sandbox.box, await unary_request(request)).close_stdin()
        return JSONResponse({})

    async def send_signal(self, request: Request) -> Response:
        """Send a command and what it started a signal; after the one that kills it is gone when this is answered."""
        sandbox = await sandbox_of(request, self._sandboxes)
        body = await unary_request(request)
        name = text(body, "signal")
        if name not in SIGNALS:
            raise RefusedError("invalid_argument", f"signal must be one of {sorted(SIGNALS)}, got {name!r}")
        process = _selected(sandbox.box, body)
        await process.signal(SIGNALS[name])
        if SIGNALS[name] == SIGKILL:
            await _gone(process)
        return JSONResponse({})

    async def update(self, request: Request) -> Response:
        """Give a command's terminal another size."""
        sandbox = await sandbox_of(request, self._sandboxes)
        body = await unary_request(request)
        size = nested(nested(body, "pty"), "size")
        await _selected(sandbox.box, body).resize(integer(size, "rows"), integer(size, "cols"))
        return JSONResponse({})

    def _late(self, process: Process) -> None:
        task = asyncio.ensure_future(_kill(process))
        self._killing.add(task)
        task.add_done_callback(self._killing.discard)


async def _kill(process: Process) -> None:
    if process.exited is None:
        try:
            await process.signal(SIGKILL)
        except BoxError:
            return  # it ended in the meantime, or its sandbox did


async def _gone(process: Process) -> None:
    """Wait for the end of a command that was killed, so that who asks for it next does not find it."""
    until = asyncio.get_running_loop().time() + KILL_WAIT_S
    while process.exited is None and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(KILL_POLL_S)


async def _started(box: Box, body: dict[str, Any], user: str | None) -> Process:
    config = nested(body, "process")
    command, arguments, envs = text(config, "cmd"), texts(config, "args"), variables(config, "envs")
    terminal = nested(nested(body, "pty"), "size")
    return await box.spawn(
        command,
        arguments,
        envs=envs,
        cwd=optional_text(config, "cwd"),
        user=user,
        stdin=flag(body, "stdin", default=True),
        pty=(integer(terminal, "rows"), integer(terminal, "cols")) if terminal else None,
        tag=optional_text(body, "tag"),
    )


def _selected(box: Box, body: dict[str, Any]) -> Process:
    selector = nested(body, "process")
    if "tag" in selector:
        return box.process(tag=checked_text("tag", selector["tag"]))
    return box.process(pid=integer(selector, "pid"))


async def _in_time(process: Process, late: asyncio.TimerHandle, frames: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    """Frames of a command that is killed when it is late; the clock runs on when the client leaves before its end."""
    try:
        async with aclosing(frames):
            async for data in frames:
                yield data
    finally:
        if process.exited is not None:
            late.cancel()


async def _followed(process: Process, keepalive_s: float, timeout_s: float | None = None) -> AsyncGenerator[bytes]:
    loop = asyncio.get_running_loop()
    deadline = None if timeout_s is None else loop.time() + timeout_s
    async with process.subscribe() as events:
        yield frame({"event": {"start": {"pid": process.pid}}})
        while True:
            quiet = loop.time() + keepalive_s
            try:
                async with asyncio.timeout_at(quiet if deadline is None else min(quiet, deadline)):
                    event = await anext(events)
            except TimeoutError:
                if deadline is not None and loop.time() >= deadline:
                    raise RefusedError(
                        "deadline_exceeded", f"the command's time-out of {timeout_s} s is over"
                    ) from None
                yield frame({"event": {"keepalive": {}}})
                continue
            if isinstance(event, Exited):
                if event.exit_code < 0 and event.signal is None:
                    raise sandbox_ended(event.error or "it ended")
                yield frame({"event": {"end": _ended(event)}})
                return
            written = base64.b64encode(event.data)
            yield raw_frame(b'{"event":{"data":{"%s":"%s"}}}' % (event.stream.encode(), written))


async def _once(message: dict[str, Any]) -> AsyncIterator[bytes]:
    yield frame(message)


def _ended(event: Exited) -> dict[str, Any]:
    if event.signal is not None:
        status = f"signal: {SIGNAL_WORDS.get(event.signal, event.signal)}"
        return {"exitCode": -1, "exited": False, "status": status, "error": event.error or status}
    status = f"exit status {event.exit_code}"
    ended: dict[str, Any] = {"exitCode": event.exit_code, "exited": True, "status": status}
    if event.exit_code:
        ended["error"] = event.error or status
    return ended


def _described(process: ProcessInfo) -> dict[str, Any]:
    config = {"cmd": process.cmd, "args": list(process.args), "envs": dict(process.envs), "cwd": process.cwd}
    described: dict[str, Any] = {"pid": process.pid, "config": config}
    if process.tag is not None:
        described["tag"] = process.tag
    return described


def _input(given: dict[str, Any]) -> bytes:
    value = given.get("pty", given.get("stdin", ""))
    if not isinstance(value, str):
        raise RefusedError("invalid_argument", f"input must be base64, got {type(value).__name__}")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedError("invalid_argument", f"input is not base64: {error}") from error


def _timeout_s(request: Request) -> float | None:
    given = request.headers.get("connect-timeout-ms")
    if given is None:
        return None
    milliseconds = digits(given)
    if not milliseconds:
        raise RefusedError("invalid_argument", f"Connect-Timeout-Ms must be milliseconds >= 1, got {shown(given)}")
    return min(milliseconds / 1000, MAX_TIMEOUT_S)


def _keepalive_s(request: Request) -> float:
    seconds = digits(request.headers.get("keepalive-ping-interval", ""))
    return KEEPALIVE_S if seconds is None else max(MIN_KEEPALIVE_S, min(seconds, MAX_TIMEOUT_S))
