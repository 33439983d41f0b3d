"""An OpenAI-compatible server that plays a script, fast enough to be no part of what is measured.

It is written on bare asyncio: a request costs it a few dozen microseconds, a tenth of what a web framework takes.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from tiltyard.testing.scripted import Line, as_reply
from tiltyard.testing.served_tokens import logprobs_of, prompt_text, sampled_text, to_ids
from tiltyard.tools.messages import call_as_json
from tiltyard.types import Reply


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the server, whole or faulty.

    Attributes:
        line: What the model says.
        status: The HTTP status; any but 200 has `error` for a body.
        error: What the server says with it.
        headers: Further headers.
        latency_s: How long it takes; None takes the server's.
        raw: The body as it is, in place of all that.
        disconnect: The connection is closed without an answer.
        fields: Further fields of the choice's message.
        finish_reason: In place of the line's own.
    """

    line: Line = ""
    status: int = 200
    error: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    latency_s: float | None = None
    raw: bytes | None = None
    disconnect: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None


Script = Sequence[Line | Answer] | Callable[[dict[str, Any], int], Line | Answer]
"""The lines of every episode, by the number of its turn; or a function of the request and that number."""


class OpenAIServer:
    """A server on this machine, in a thread of its own.

    Which line is next follows from the request alone, so that one server serves many episodes. `stop` cuts every
    connection as a killed server does, and `start` begins again at the same address.

    Attributes:
        base_url: The address, with `/v1`.
        requests: How many chat requests came.
        bodies: What they were.
        headers: Their headers, with names in lower case.
        connections: How many connections were opened.
        most_at_once: How many requests were being answered at one time, at most.
    """

    def __init__(
        self,
        script: Script | bytes,
        *,
        latency_s: float = 0.0,
        faults: Sequence[Answer | None] = (),
        tokens: Literal["vllm", "llama.cpp"] | None = None,
        port: int = 0,
    ) -> None:
        """Set the server up; `start`, or a `with` block, starts it.

        Args:
            script: What the model says; bytes are the body of every answer, and then no request is looked at.
            latency_s: How long each answer takes.
            faults: Answers in place of the script's to the first requests, by their number; None leaves the script's.
            tokens: Whose way of giving token ids the server knows; they are given to those who ask.
            port: Where to listen; 0 takes a free one.
        """
        self.requests = 0
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.most_at_once = 0
        self.at_once = 0
        self._script = script
        self._latency_s = latency_s
        self._faults = faults
        self._tokens = tokens
        self._port = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.open: set[Connection] = set()

    @property
    def base_url(self) -> str:
        """The address, with `/v1`; the port is known once the server has started."""
        return f"http://127.0.0.1:{self._port}/v1"

    def start(self) -> Self:
        """Listen; returns when requests can come."""
        started: list[BaseException | None] = []
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started, ready), name="openai-server", daemon=True)
        self._thread.start()
        ready.wait()
        if started[0] is not None:
            raise started[0]
        return self

    def stop(self) -> None:
        """Cut all connections and free the port; more than one call does no harm."""
        if self._loop is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop = self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def respond(self, path: str, headers: dict[str, str], payload: bytes) -> tuple[bytes | None, float]:
        """The bytes that answer a request (None: close the connection), and after how many seconds."""
        if path.endswith("/chat/completions"):
            self.requests += 1
            fault = self._faults[self.requests - 1] if self.requests <= len(self._faults) else None
            if isinstance(self._script, bytes) and fault is None:
                return http_response(200, self._script), self._latency_s
            body = json.loads(payload)
            self.bodies.append(body)
            self.headers.append(headers)
            answer = fault or self._line(body)
            latency = self._latency_s if answer.latency_s is None else answer.latency_s
            return (None if answer.disconnect else self._write(answer, body)), latency
        body = json.loads(payload)
        if self._tokens == "llama.cpp" and path.endswith("/apply-template"):
            return http_response(200, json.dumps({"prompt": prompt_text(body)}).encode()), 0.0
        if self._tokens == "llama.cpp" and path.endswith("/tokenize"):
            return http_response(200, json.dumps({"tokens": to_ids(body["content"])}).encode()), 0.0
        return http_response(404, b'{"error": {"message": "no such path"}}'), 0.0

    def _line(self, body: dict[str, Any]) -> Answer:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        script = self._script
        assert not isinstance(script, bytes)
        if callable(script):
            line = script(body, turn)
        elif turn < len(script):
            line = script[turn]
        else:
            line = Answer(status=400, error=f"the script has {len(script)} lines, and turn {turn} was asked for")
        if isinstance(line, Exception):
            line = Answer(status=400, error=str(line))
        return line if isinstance(line, Answer) else Answer(line)

    def _write(self, answer: Answer, body: dict[str, Any]) -> bytes:
        if answer.raw is not None:
            return http_response(answer.status, answer.raw, answer.headers)
        if answer.status != 200:
            error = {"error": {"message": answer.error, "type": "scripted", "code": None}}
            return http_response(answer.status, json.dumps(error).encode(), answer.headers)
        return http_response(200, json.dumps(self._completion(answer, body)).encode(), answer.headers)

    def _completion(self, answer: Answer, body: dict[str, Any]) -> dict[str, Any]:
        reply = as_reply(answer.line)
        prompt, ids = to_ids(prompt_text(body)), to_ids(sampled_text(reply))
        message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None, "annotations": []}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.tool_calls:
            message["tool_calls"] = [{**call_as_json(call), "index": i} for i, call in enumerate(reply.tool_calls)]
        choice: dict[str, Any] = {"index": 0, "message": {**message, **answer.fields}, "stop_reason": None}
        choice["finish_reason"] = answer.finish_reason or _finish_reason(reply)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
        data = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": body.get("model")}
        if body.get("logprobs"):
            choice["logprobs"] = {"content": logprobs_of(ids, with_ids=self._tokens == "llama.cpp")}
        if self._tokens == "vllm" and body.get("return_token_ids"):
            choice["token_ids"] = ids
            data["prompt_token_ids"] = prompt
        return {**data, "choices": [choice], "usage": usage}

    def _serve(self, started: list[BaseException | None], ready: threading.Event) -> None:
        loop = self._loop = asyncio.new_event_loop()
        server = None
        try:
            try:
                create = loop.create_server(lambda: Connection(self), "127.0.0.1", self._port, backlog=4096)
                server = loop.run_until_complete(create)
                self._port = server.sockets[0].getsockname()[1]
                started.append(None)
            except OSError as error:
                started.append(error)
                return
            finally:
                ready.set()
            loop.run_forever()
        finally:
            if server is not None:
                server.close()
            for connection in list(self.open):
                connection.cut()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()


class Connection(asyncio.Protocol):
    """One client's connection: requests one after the other, as HTTP/1.1 keeps it alive."""

    def __init__(self, server: OpenAIServer) -> None:
        self._server = server
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with a client."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections += 1
        self._server.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client, and what it waited for."""
        self._server.open.discard(self)
        if self._due is not None:
            self._due.cancel()
            self._server.at_once -= 1
            self._due = None

    def cut(self) -> None:
        """Close without a word."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take what came, and answer where it completes a request."""
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head, length = self._buffer[:end], 0
        mark = head.lower().find(b"content-length:")
        if mark >= 0:
            length = int(head[mark + 15 :].split(b"\r\n", 1)[0])
        if len(self._buffer) < end + 4 + length:
            return
        payload, self._buffer = self._buffer[end + 4 : end + 4 + length], self._buffer[end + 4 + length :]
        lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:])
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        response, latency_s = self._server.respond(lines[0].split(" ")[1], headers, payload)
        self._server.at_once += 1
        self._server.most_at_once = max(self._server.most_at_once, self._server.at_once)
        loop = asyncio.get_running_loop()
        self._due = loop.call_later(latency_s, self._send, response)

    def _send(self, response: bytes | None) -> None:
        self._due = None
        self._server.at_once -= 1
        if response is None:
            self.cut()
        elif self._transport is not None:
            self._transport.write(response)


def http_response(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """A response as it goes over the wire."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = f"HTTP/1.1 {status} x\r\ncontent-type: application/json\r\n{lines}content-length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


def _finish_reason(reply: Reply) -> str:
    if reply.finish_reason != "stop":
        return "length"
    return "tool_calls" if reply.tool_calls else "stop"
