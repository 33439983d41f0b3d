"""A server of sandboxes that plays a script: it speaks E2B's API, runs nothing, and fails when it is told to."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tiltyard.testing.sandbox_requests import Listener


@dataclass(frozen=True, slots=True)
class Said:
    """What a command does.

    Attributes:
        stdout: What it prints, one piece after the other; it is cut where its reader leaves.
        stderr: What it prints there, after that.
        exit_code: How it ends.
        hangs: It does not end: the stream stays open until the sandbox is gone, its client leaves, or the server says
            that its time is over.
        for_s: How long it hangs before the server says so; None = as long as its client gave it.
        drops: The connection is cut after the output.
        lost: The sandbox is gone then, as its node is.
        error: The stream ends with this Connect error, a code and a message.
    """

    stdout: Sequence[str] | str = ()
    stderr: Sequence[str] | str = ()
    exit_code: int = 0
    hangs: bool = False
    for_s: float | None = None
    drops: bool = False
    lost: bool = False
    error: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """What one request is answered with, in place of what it asks for.

    Attributes:
        status: The HTTP status; None does what is asked for.
        message: What the server says with it.
        delay_s: How long the answer takes.
        drop: The connection is cut without an answer.
        done: With `drop`: what is asked for is done all the same.
    """

    status: int | None = None
    message: str = "scripted"
    delay_s: float = 0.0
    drop: bool = False
    done: bool = False


@dataclass(slots=True)
class FakeSandbox:
    """A sandbox that there is.

    Attributes:
        metadata: What it was made with.
        envs: Its environment variables.
        timeout_s: What it was made with, and then the last heartbeat's.
        files: What is in it.
        state: "running" or "paused".
        gone: Set when it is killed.
    """

    metadata: Mapping[str, str]
    envs: Mapping[str, str]
    timeout_s: int
    files: dict[str, bytes] = field(default_factory=dict)
    state: str = "running"
    gone: threading.Event = field(default_factory=threading.Event)


class SandboxServer:
    """A scripted server on this machine, in threads of its own; `stop` cuts every connection, `start` begins again.

    Attributes:
        sandboxes: Those that there are, by id.
        created: The ids of all that were made, in order.
        killed: The ids of all that were killed by a request, in order.
        beats: How many heartbeats came.
        commands: The command lines that were started, in order.
        limits_s: How long their client gave each of them.
        lists: How many list requests came.
        refuses: What it does not have: "/v2/sandboxes" or "/sandboxes", as other generations do not.
        templates: The templates that it knows.
    """

    def __init__(
        self,
        script: Mapping[str, Said] | Callable[[str], Said] | None = None,
        *,
        faults: Mapping[str, Sequence[Fault | None]] | None = None,
        refuses: str | None = None,
        dead_status: int = 502,
    ) -> None:
        """Set it up; `start`, or a `with` block, starts it.

        Args:
            script: What a command does: by a text that is in its line, or a function of the line. Others print
                nothing and end with 0.
            faults: What the requests of one kind are answered with, in their order; the kinds are `create`, `info`,
                `kill`, `keep`, `list`, `start`, `signal`, `read`, `write`.
            refuses: See `refuses` above.
            dead_status: How calls to a sandbox that is gone are answered: 502, 404 or 410.
        """
        self.sandboxes: dict[str, FakeSandbox] = {}
        self.created: list[str] = []
        self.killed: list[str] = []
        self.commands: list[str] = []
        self.limits_s: list[float] = []
        self.beats = 0
        self.lists = 0
        self.refuses = refuses
        self.templates = ("base", "my-env")
        self.most_at_once = 0
        self._dead_status = dead_status
        self._script = script
        self._faults = {kind: list(given) for kind, given in (faults or {}).items()}
        self._lock = threading.Lock()
        self._running = 0
        self._port = 0
        self._server: Listener | None = None

    @property
    def url(self) -> str:
        """The address; the port is known once the server has started."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Listen, at the same address as before."""
        self._server = Listener(self, self._port)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Cut all connections and lose all sandboxes, as a killed server does; more than one call does no harm."""
        server, self._server = self._server, None
        if server is None:
            return
        for sandbox in self.sandboxes.values():
            sandbox.gone.set()
        self.sandboxes.clear()
        server.shutdown()
        server.server_close()
        server.cut()

    def drop(self, sandbox_id: str) -> None:
        """Lose one sandbox, as a node that dies does."""
        self.sandboxes.pop(sandbox_id).gone.set()

    def fault(self, kind: str) -> Fault | None:
        """The next fault of this kind of request."""
        with self._lock:
            waiting = self._faults.get(kind)
            return waiting.pop(0) if waiting else None

    def forgive(self) -> None:
        """Forget the faults that are left."""
        with self._lock:
            self._faults.clear()

    def said(self, line: str) -> Said:
        """What a command does."""
        self.commands.append(line)
        if callable(self._script):
            return self._script(line)
        return next((said for text, said in (self._script or {}).items() if text in line), Said())

    def make(self, body: Mapping[str, Any]) -> str:
        """Make a sandbox; its id."""
        with self._lock:
            name = f"sb{len(self.created):04d}"
            self.created.append(name)
        metadata, envs = body.get("metadata") or {}, body.get("envVars") or {}
        self.sandboxes[name] = FakeSandbox(metadata, envs, body.get("timeout", 15))
        return name

    def counted(self, change: int) -> None:
        """Count the commands that are under way."""
        with self._lock:
            self._running += change
            self.most_at_once = max(self.most_at_once, self._running)

    @property
    def dead_status(self) -> int:
        """How calls to a sandbox that is gone are answered."""
        return self._dead_status

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()
