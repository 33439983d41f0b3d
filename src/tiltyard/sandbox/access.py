"""Who may ask: the key of the control plane, and the token, signature and user of a request to one sandbox."""

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections.abc import Iterable

from starlette.requests import Request

from tiltyard.sandbox.fields import digits
from tiltyard.sandbox.live import Sandboxes
from tiltyard.sandbox.live_sandbox import LiveSandbox
from tiltyard.sandbox.refusal import RefusedError

HOST_OF_SANDBOX = re.compile(r"\d+-([A-Za-z0-9]+)\.")
"""The host name of a sandbox's port, where a proxy hands such names on: `49983-ID.domain`."""


def check_key(request: Request, key: str) -> None:
    """Let requests with the server's key through.

    Raises:
        RefusedError: It has another key or none.
    """
    given = request.headers.get("x-api-key")
    if given is None:
        raise RefusedError(
            "unauthenticated", "the header X-API-KEY is missing; the server printed its key when it started"
        )
    if not _same(given, key):
        raise RefusedError("unauthenticated", "the header X-API-KEY is not the key of this server")


async def sandbox_of(request: Request, sandboxes: Sandboxes, *, wakes: bool = True) -> LiveSandbox:
    """The sandbox that a request is for, running.

    Raises:
        RefusedError: It is gone or paused, or the request does not have its token.
    """
    sandbox = sandboxes.find(_sandbox_id(request))
    if sandbox is None:
        raise _gone(_sandbox_id(request))
    _check_token(request, sandbox)
    if sandbox.paused:
        if not (wakes and sandbox.wakes):
            raise _gone(sandbox.id, "it is paused; connect to it to let it go on")
        await sandboxes.resume(sandbox, sandbox.asked.timeout_s)
    return sandbox


def signed_for(request: Request, sandboxes: Iterable[LiveSandbox], operation: str) -> LiveSandbox | None:
    """The sandbox whose token has signed this request's file; None when the request is not signed.

    A signed link names no sandbox: the signature is one that only the holder of its token can write.

    Raises:
        RefusedError: No sandbox's token has signed it, or its time is over.
    """
    query = request.query_params
    signature = query.get("signature")
    if signature is None:
        return None
    expires = query.get("signature_expiration")
    signed = [query.get("path", ""), operation, query.get("username", "")]
    for sandbox in sandboxes:
        raw = ":".join([*signed, sandbox.token, *([expires] if expires else [])])
        digest = base64.b64encode(hashlib.sha256(raw.encode()).digest()).rstrip(b"=").decode()
        if _same(signature, f"v1_{digest}"):
            if expires and (digits(expires) or 0) < time.time():
                raise RefusedError("unauthenticated", "signature is already expired")
            return sandbox
    raise RefusedError("unauthenticated", "invalid signature")


def user_of(request: Request) -> str | None:
    """The user that a remote call names; None when it names none.

    Raises:
        RefusedError: The header cannot be read.
    """
    given = request.headers.get("authorization")
    if given is None:
        return None
    kind, _, encoded = given.partition(" ")
    try:
        if kind.lower() != "basic":
            raise ValueError("not Basic")
        user = base64.b64decode(encoded, validate=True).decode().partition(":")[0]
    except (binascii.Error, ValueError) as error:
        raise RefusedError(
            "unauthenticated", f"the header Authorization must be 'Basic …' with a user: {error}"
        ) from error
    return user or None


def _sandbox_id(request: Request) -> str:
    named = request.headers.get("e2b-sandbox-id")
    if named is None:
        found = HOST_OF_SANDBOX.match(request.headers.get("host", ""))
        named = found[1] if found else None
    if named is None:
        raise RefusedError("invalid_argument", "the header E2b-Sandbox-Id is missing: which sandbox is this for?")
    return named


def _check_token(request: Request, sandbox: LiveSandbox) -> None:
    given = request.headers.get("x-access-token")
    if given is None:
        raise RefusedError("unauthenticated", "the header X-Access-Token is missing; it is handed out with the sandbox")
    if not _same(given, sandbox.token):
        raise RefusedError("unauthenticated", "the header X-Access-Token is not the token of this sandbox")


def _gone(sandbox_id: str, why: str = "it was killed, or its time is over") -> RefusedError:
    return RefusedError("unavailable", f"the sandbox {sandbox_id!r} was not found: {why}")


def _same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(), secret.encode())
