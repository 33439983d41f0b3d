"""How the scripted server of sandboxes answers: the control plane, commands as streams, and files."""

import base64
import json
import socket
import struct
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

if TYPE_CHECKING:
    from tiltyard.testing.sandbox_server import FakeSandbox, Said, SandboxServer

END_OF_STREAM = 0x02
WAIT_S = 60.0
"""Nothing that hangs here hangs longer."""


class Listener(ThreadingHTTPServer):
    """Takes connections, and cuts them all when it is told to."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, owner: "SandboxServer", port: int) -> None:
        self.owner = owner
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def get_request(self) -> tuple[Any, Any]:
        """Take a connection, and remember it."""
        taken, address = super().get_request()
        self._open.add(taken)
        return taken, address

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that ended."""
        self._open.discard(request)
        super().shutdown_request(request)

    def cut(self) -> None:
        """Cut every connection."""
        for taken in list(self._open):
            _reset(taken)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no error of the server's."""


def _reset(connection: socket.socket) -> None:
    """Cut a connection: the other side sees it broken, not ended."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    _mute = False

    @property
    def owner(self) -> "SandboxServer":
        """The server whose script is played."""
        assert isinstance(self.server, Listener)
        return self.server.owner

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as the base class names it
        """Say nothing."""

    def do_POST(self) -> None:
        """Answer a request that makes or changes something."""
        body = self._body()
        owner, path = self.owner, urlsplit(self.path).path
        parts = path.strip("/").split("/")
        if path in ("/sandboxes", "/v2/sandboxes"):
            if path == owner.refuses:
                self._answer(405, {"code": 405, "message": "method not allowed"})
            else:
                self._do("create", lambda: self._create(json.loads(body)))
        elif parts[0] == "sandboxes" and parts[-1] == "timeout":
            self._do("keep", lambda: self._keep(parts[1], json.loads(body)["timeout"]))
        elif path == "/process.Process/Start":
            self._do("start", lambda: self._start(json.loads(body[5:])))
        elif path == "/process.Process/SendSignal":
            self._do("signal", lambda: self._answer(200, {}))
        elif path == "/files":
            self._do("write", lambda: self._write(body))
        else:
            self._do("other", lambda: self._answer(200, {}))

    def do_GET(self) -> None:
        """Answer a question."""
        owner, url = self.owner, urlsplit(self.path)
        parts = url.path.strip("/").split("/")
        if url.path == "/v2/sandboxes":
            self._do("list", lambda: self._list(dict(parse_qsl(url.query))))
        elif parts[0] == "sandboxes":
            self._do("info", lambda: self._info(parts[1]))
        elif url.path == "/files":
            self._do("read", lambda: self._read(dict(parse_qsl(url.query))["path"]))
        elif self._sandbox() is not None:
            self._answer(204)
        else:
            self._answer(owner.dead_status, {"code": owner.dead_status, "message": "sandbox was not found"})

    def do_DELETE(self) -> None:
        """Kill a sandbox."""
        name = urlsplit(self.path).path.strip("/").split("/")[-1]
        self._do("kill", lambda: self._kill(name))

    def _do(self, kind: str, action: Callable[[], None]) -> None:
        fault = self.owner.fault(kind)
        if fault is None:
            action()
            return
        time.sleep(fault.delay_s)
        if fault.drop:
            if fault.done:
                self._mute = True
                action()
            _reset(self.connection)
            self.close_connection = True
        elif fault.status is not None:
            self._answer(fault.status, {"code": fault.status, "message": fault.message})
        else:
            action()

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _sandbox(self) -> "FakeSandbox | None":
        return self.owner.sandboxes.get(self.headers.get("E2b-Sandbox-Id") or "")

    def _create(self, body: Mapping[str, Any]) -> None:
        owner = self.owner
        if body["templateID"] not in owner.templates:
            self._answer(404, {"code": 404, "message": f"template '{body['templateID']}' not found"})
            return
        name = owner.make(body)
        described = {"templateID": body["templateID"], "sandboxID": name, "clientID": "c", "envdVersion": "0.5.7"}
        self._answer(201, described)

    def _keep(self, name: str, timeout_s: int) -> None:
        sandbox = self.owner.sandboxes.get(name)
        if sandbox is None:
            self._answer(404, {"code": 404, "message": f"sandbox {name} not found"})
            return
        sandbox.timeout_s = timeout_s
        self.owner.beats += 1
        self._answer(204)

    def _kill(self, name: str) -> None:
        owner = self.owner
        sandbox = owner.sandboxes.pop(name, None)
        if sandbox is None:
            self._answer(404, {"code": 404, "message": f"sandbox {name} not found"})
            return
        owner.killed.append(name)
        sandbox.gone.set()
        self._answer(204)

    def _info(self, name: str) -> None:
        sandbox = self.owner.sandboxes.get(name)
        if sandbox is None:
            self._answer(404, {"code": 404, "message": f"sandbox {name} not found"})
            return
        self._answer(200, _described(name, sandbox))

    def _list(self, query: Mapping[str, str]) -> None:
        owner = self.owner
        owner.lists += 1
        text = query.get("metadata", "")  # each of its values is encoded three times; once is undone already
        wanted = {unquote(key): unquote(value) for key, value in parse_qsl(text)}
        found = [
            _described(name, sandbox)
            for name, sandbox in list(owner.sandboxes.items())
            if wanted.items() <= dict(sandbox.metadata).items()
        ]
        self._answer(200, found)

    def _start(self, message: Mapping[str, Any]) -> None:
        owner, sandbox = self.owner, self._sandbox()
        if sandbox is None:
            self._answer(owner.dead_status, {"code": owner.dead_status, "message": "sandbox was not found"})
            return
        owner.limits_s.append(float(self.headers.get("connect-timeout-ms") or WAIT_S * 1000) / 1000)
        said = owner.said(message["process"]["args"][-1])
        self.send_response(200)
        self.send_header("content-type", "application/connect+json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        owner.counted(1)
        try:
            self._play(said, sandbox)
        finally:
            owner.counted(-1)

    def _play(self, said: "Said", sandbox: "FakeSandbox") -> None:
        self._frame({"event": {"start": {"pid": 42}}})
        for name, pieces in (("stdout", said.stdout), ("stderr", said.stderr)):
            for piece in (pieces,) if isinstance(pieces, str) else pieces:
                self._frame({"event": {"data": {name: base64.b64encode(piece.encode()).decode()}}})
        limit_s = said.for_s or self.owner.limits_s[-1]
        if said.hangs and not sandbox.gone.wait(min(limit_s, WAIT_S)):
            self._frame({"error": {"code": "deadline_exceeded", "message": "time is over"}}, END_OF_STREAM)
        elif said.hangs or said.drops or said.lost:
            if said.lost:
                self.owner.drop(self.headers["E2b-Sandbox-Id"])
            _reset(self.connection)
            self.close_connection = True
            return
        elif said.error is not None:
            self._frame({"error": {"code": said.error[0], "message": said.error[1]}}, END_OF_STREAM)
        else:
            end = {"exitCode": said.exit_code, "exited": True, "status": f"exit status {said.exit_code}"}
            self._frame({"event": {"end": end}})
            self._frame({}, END_OF_STREAM)
        self.wfile.write(b"0\r\n\r\n")

    def _frame(self, message: Any, flags: int = 0) -> None:
        data = json.dumps(message).encode()
        data = bytes((flags,)) + len(data).to_bytes(4, "big") + data
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _write(self, body: bytes) -> None:
        owner, sandbox = self.owner, self._sandbox()
        if sandbox is None:
            self._answer(owner.dead_status, {"code": owner.dead_status, "message": "sandbox was not found"})
            return
        path, content = _uploaded(dict(parse_qsl(urlsplit(self.path).query)).get("path"), body)
        sandbox.files[path] = content
        self._answer(200, [{"name": path.rpartition("/")[2], "path": path, "type": "file"}])

    def _read(self, path: str) -> None:
        owner, sandbox = self.owner, self._sandbox()
        if sandbox is None:
            self._answer(owner.dead_status, {"code": owner.dead_status, "message": "sandbox was not found"})
        elif path not in sandbox.files:
            self._answer(404, {"code": 404, "message": f"path '{path}' does not exist"})
        else:
            self._answer(200, sandbox.files[path])

    def _answer(self, status: int, body: Any = None) -> None:
        if self._mute:
            return
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/octet-stream" if isinstance(body, bytes) else "application/json")
        if status != 204:
            self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _described(name: str, sandbox: "FakeSandbox") -> dict[str, Any]:
    return {
        "templateID": "base",
        "sandboxID": name,
        "clientID": "c",
        "startedAt": "2030-01-01T00:00:00Z",
        "endAt": "2030-01-01T01:00:00Z",
        "cpuCount": 1,
        "memoryMB": 128,
        "diskSizeMB": 128,
        "envdVersion": "0.5.7",
        "state": sandbox.state,
        "metadata": dict(sandbox.metadata),
    }


def _uploaded(path: str | None, body: bytes) -> tuple[str, bytes]:
    """The path and the bytes of an uploaded file: as they are, or the one part of a form."""
    if not body.startswith(b"--"):
        return path or "", body
    head, _, rest = body.partition(b"\r\n\r\n")
    boundary = body.partition(b"\r\n")[0]
    named = head.partition(b'filename="')[2].partition(b'"')[0].decode()
    return path or named, rest.rpartition(b"\r\n" + boundary)[0]
