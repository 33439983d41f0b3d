"""The control plane: sandboxes are created, found, connected to, paused and ended."""

import asyncio
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tiltyard._boundary import shown
from tiltyard.sandbox.entries import timestamp
from tiltyard.sandbox.fields import flag, integer, nested, parsed_object, text, text_mapping, variables
from tiltyard.sandbox.framing import whole_body
from tiltyard.sandbox.listing import page, wanted
from tiltyard.sandbox.live import Sandboxes
from tiltyard.sandbox.live_sandbox import DEFAULT_TIMEOUT_S, Asked, LiveSandbox
from tiltyard.sandbox.refusal import RefusedError

ENVD_VERSION = "0.6.4"
"""The version of E2B's guest service whose calls are answered: clients leave out what an older one could not do."""

UNSUPPORTED = {
    "iam": "workload tokens",
    "volumeMounts": "volumes",
}
"""What a create request may ask for and this server does not have."""

NOTHING_OUT = {"denyOut": ["0.0.0.0/0"]}
"""The one network rule that can be kept here: no network."""


class Control:
    """Answers the requests of the control plane."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        self._made: dict[str, asyncio.Task[LiveSandbox]] = {}

    def routes(self) -> list[Route]:
        """Where each request is answered; clients before 2.51 leave out the `/v2`."""
        one = "/sandboxes/{id}"
        calls = [
            Route("/sandboxes", self.create, methods=["POST"]),
            Route(one, self.info, methods=["GET"]),
            Route(one, self.kill, methods=["DELETE"]),
            Route(f"{one}/connect", self.connect, methods=["POST"]),
            Route(f"{one}/resume", self.connect, methods=["POST"]),
            Route(f"{one}/timeout", self.set_timeout, methods=["POST"]),
            Route(f"{one}/pause", self.pause, methods=["POST"]),
            Route(f"{one}/metrics", self.metrics, methods=["GET"]),
            Route(f"{one}/fork", self.fork, methods=["POST"]),
        ]
        newer = [Route(f"/v2{call.path}", call.endpoint, methods=list(call.methods or ())) for call in calls]
        lists = [Route(path, self.list, methods=["GET"]) for path in ("/sandboxes", "/v2/sandboxes")]
        return [*calls, *newer, *lists]

    async def create(self, request: Request) -> Response:
        """Make a sandbox; a request that is sent again under its idempotency key gets the same one."""
        asked = _asked(parsed_object(await whole_body(request)))
        key = request.headers.get("idempotency-key")
        if key is None:
            return JSONResponse(_handed(await self._sandboxes.create(asked)), 201)
        self._forget_ended()
        making = self._made.get(key)
        if making is None:
            making = self._made[key] = asyncio.ensure_future(self._sandboxes.create(asked))
        sandbox = await asyncio.shield(making)
        if sandbox.asked != asked:
            raise RefusedError("already_exists", f"the idempotency key {key!r} was used for another request")
        return JSONResponse(_handed(sandbox), 201)

    async def list(self, request: Request) -> Response:
        """A page of sandboxes."""
        found = page(self._sandboxes.all(), wanted(request.query_params))
        headers = {} if found.next_token is None else {"X-Next-Token": found.next_token}
        return JSONResponse([_described(sandbox) for sandbox in found.sandboxes], headers=headers)

    async def info(self, request: Request) -> Response:
        """One sandbox."""
        sandbox = self._found(request)
        lifecycle = {"autoResume": sandbox.asked.auto_resume, "onTimeout": sandbox.asked.on_timeout}
        return JSONResponse({**_described(sandbox), "envdAccessToken": sandbox.token, "lifecycle": lifecycle})

    async def kill(self, request: Request) -> Response:
        """End a sandbox."""
        await self._sandboxes.kill(self._found(request))
        return Response(status_code=204)

    async def connect(self, request: Request) -> Response:
        """Give a client what it needs to talk to a sandbox; a paused one goes on."""
        body = parsed_object(await whole_body(request))
        timeout_s, memory = integer(body, "timeout", DEFAULT_TIMEOUT_S), flag(body, "memory", default=True)
        was_paused = await self._sandboxes.resume(self._found(request), timeout_s, memory=memory)
        return JSONResponse(_handed(self._found(request)), 201 if was_paused else 200)

    async def set_timeout(self, request: Request) -> Response:
        """Let a sandbox end so many seconds from now."""
        body = parsed_object(await whole_body(request))
        self._sandboxes.set_timeout(self._found(request), integer(body, "timeout"))
        return Response(status_code=204)

    async def pause(self, request: Request) -> Response:
        """Stop a sandbox where it is, or keep its files alone."""
        body = parsed_object(await whole_body(request))
        await self._sandboxes.pause(self._found(request), memory=flag(body, "memory", default=True))
        return Response(status_code=204)

    async def metrics(self, request: Request) -> Response:
        """What a sandbox uses now; nothing when another time is asked for, or it is paused."""
        sandbox = self._found(request)
        now = int(time.time())
        start, end = (integer(request.query_params, name, now) for name in ("start", "end"))
        if sandbox.paused or not start <= now <= end + 1:
            return JSONResponse([])
        used = await sandbox.box.metrics()
        sample = {
            "timestamp": timestamp(now),
            "timestampUnix": now,
            "cpuCount": used.cpu_count,
            "cpuUsedPct": used.cpu_used_pct,
            "memUsed": used.mem_used,
            "memTotal": used.mem_total,
            "memCache": used.mem_cache,
            "diskUsed": used.disk_used,
            "diskTotal": used.disk_total,
        }
        return JSONResponse([sample])

    async def fork(self, request: Request) -> Response:
        """Refuse: what runs in a sandbox cannot be copied, and a fork without it would look like one."""
        self._found(request)
        raise RefusedError(
            "unimplemented",
            "the local sandbox server has no forks: running processes cannot be copied. Take a snapshot, which has the "
            "files, and create sandboxes from it",
        )

    def _found(self, request: Request) -> LiveSandbox:
        return self._sandboxes.get(request.path_params["id"])

    def _forget_ended(self) -> None:
        live = set(self._sandboxes.all())
        for key, task in list(self._made.items()):
            if task.done() and (task.cancelled() or task.exception() is not None or task.result() not in live):
                del self._made[key]


def _asked(body: dict[str, Any]) -> Asked:
    for name, what in UNSUPPORTED.items():
        if body.get(name):
            raise RefusedError("unimplemented", f"the local sandbox server has no {what}; leave out {name!r}")
    auto_resume, keep_memory = flag(nested(body, "autoResume"), "enabled"), flag(body, "autoPauseMemory", default=True)
    if auto_resume and not keep_memory:
        raise RefusedError(
            "invalid_argument", "a sandbox that is paused without its memory cannot wake on use: connect"
        )
    timeout_s = integer(body, "timeout", DEFAULT_TIMEOUT_S)
    if timeout_s < 1:
        raise RefusedError("invalid_argument", f"timeout must be >= 1 second, got {timeout_s}: there is no 'no limit'")
    return Asked(
        template=text(body, "templateID"),
        timeout_s=timeout_s,
        envs=variables(body, "envVars"),
        metadata=text_mapping(body, "metadata"),
        on_timeout="pause" if flag(body, "autoPause") else "kill",
        auto_resume=auto_resume,
        keep_memory=keep_memory,
        network=flag(body, "allow_internet_access", default=True) and not _cut_off(nested(body, "network")),
    )


def _cut_off(network: dict[str, Any]) -> bool:
    said_anyway = {"allowPublicTraffic": True}  # the SDK adds what is so without it
    rules = {name: rule for name, rule in network.items() if rule and said_anyway.get(name) is not rule}
    if rules and rules != NOTHING_OUT:
        raise RefusedError(
            "unimplemented",
            f"the local sandbox server has no network rules but {NOTHING_OUT}: a template has a network or none; got "
            f"'network' with {shown(rules)}",
        )
    return bool(rules)


def _named(sandbox: LiveSandbox) -> dict[str, Any]:
    return {
        "templateID": sandbox.asked.template,
        "sandboxID": sandbox.id,
        "clientID": "tiltyard",
        "envdVersion": ENVD_VERSION,
    }


def _handed(sandbox: LiveSandbox) -> dict[str, Any]:
    return {**_named(sandbox), "envdAccessToken": sandbox.token}


def _described(sandbox: LiveSandbox) -> dict[str, Any]:
    limits = sandbox.box.template.limits
    return {
        **_named(sandbox),
        "startedAt": timestamp(sandbox.started_at),
        "endAt": timestamp(sandbox.ends_at),
        "cpuCount": max(1, round(limits.cpus)),
        "memoryMB": limits.memory_mib,
        "diskSizeMB": limits.disk_mib,
        "state": sandbox.state,
        "metadata": dict(sandbox.asked.metadata),
    }
