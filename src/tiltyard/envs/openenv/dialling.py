"""Dialling: from an address to a session that the server says it has, with patience where that helps."""

import asyncio
import random
import socket
import ssl
import time
from typing import Any

from tiltyard._optional import require
from tiltyard.envs.openenv.address import shown
from tiltyard.envs.openenv.connection import Connection
from tiltyard.envs.openenv.options import SessionOptions
from tiltyard.envs.openenv.wire import LAST_CODES, STATE_FRAME, answer_data, decode
from tiltyard.errors import ConfigurationError, LostSessionError, RolloutError, ServerFullError

FIRST_DELAY_S, LONGEST_DELAY_S = 0.05, 2.0
_dice = random.Random()  # noqa: S311  # spreads retries; not the global generator, which is the user's
_worked: set[str] = set()


async def open_session(url: str, options: SessionOptions) -> tuple[Connection, dict[str, Any]]:
    """Dial, and ask for the state until the server says that it has a session: what it said, beside the connection.

    A server that refuses connections is tried again for `connect_timeout_s`, a full one for `capacity_timeout_s`.

    Raises:
        ServerFullError: It stayed full.
        RolloutError: It cannot be reached, or could not make its environment.
        ConfigurationError: There is no OpenEnv server at this address, and there never was.
    """
    began, delay = time.monotonic(), FIRST_DELAY_S
    while True:
        try:
            found = await _opened(url, options)
        except ServerFullError as error:
            if time.monotonic() - began + delay > options.capacity_timeout_s:
                raise _full(error, url, options) from error
        except _Unreachable as error:
            if time.monotonic() - began + delay > options.connect_timeout_s:
                raise LostSessionError(
                    f"{shown(url)} cannot be reached: {error}; tried for {options.connect_timeout_s:g} s. "
                    "Is the server running there?"
                ) from error
        else:
            _worked.add(url)
            return found
        await asyncio.sleep(delay * _dice.uniform(0.5, 1.0))
        delay = min(delay * 2, LONGEST_DELAY_S)


class _Unreachable(Exception):  # noqa: N818  # it never leaves this module
    """Nobody answers at the address, for now."""


async def _opened(url: str, options: SessionOptions) -> tuple[Connection, dict[str, Any]]:
    connection = await _dialled(url, options)
    try:
        answer = await connection.request(STATE_FRAME, options.message_timeout_s)
        state = {} if _only_state_failed(answer) else answer_data(answer, "state")
    except BaseException as error:
        connection.kill("the server has no session for it")
        if type(error) is LostSessionError and url in _worked:
            raise _Unreachable(str(error)) from error
        raise
    return connection, state


def _only_state_failed(answer: bytes) -> bool:
    """An environment whose `state` raises, or that has none, has a session all the same."""
    frame = decode(answer)
    data = frame.get("data")
    return frame.get("type") == "error" and isinstance(data, dict) and data.get("code") not in LAST_CODES


async def _dialled(url: str, options: SessionOptions) -> Connection:
    exceptions = require("websockets.exceptions", "serve")
    try:
        return await Connection.dial(url, options)
    except exceptions.InvalidStatus as error:
        status = error.response.status_code
        if status in (502, 503, 504):
            raise _Unreachable(f"HTTP {status}") from error
        raise _wrong(url, _refused(status)) from error
    except exceptions.WebSocketException as error:
        cure = "; if the server speaks TLS, write https://" if url.startswith("ws:") else ""
        raise _wrong(url, f"it does not speak WebSocket ({error}){cure}") from error
    except (ConnectionError, TimeoutError, EOFError) as error:
        raise _Unreachable(str(error) or type(error).__name__) from error
    except OSError as error:
        if isinstance(error, ssl.SSLError):
            raise _wrong(url, f"TLS failed ({error}); if the server speaks plain HTTP, write http://") from error
        if isinstance(error, socket.gaierror):
            raise _wrong(url, f"its host is not known ({error})") from error
        raise _Unreachable(str(error)) from error


def _refused(status: int) -> str:
    if status == 401:
        return "it asks for a token (HTTP 401); give token=..., or set OPENENV_TOKEN"
    return (
        f"it refused the session (HTTP {status}): there is no OpenEnv server at this path, or it wants another token. "
        "The path is that of base_url with /ws after it"
    )


def _wrong(url: str, why: str) -> RolloutError | ConfigurationError:
    """An address that never worked is a mistake; one that did is a server in trouble, and costs its episodes only."""
    text = f"{shown(url)} is no OpenEnv server: {why}"
    return LostSessionError(text) if url in _worked else ConfigurationError(text)


def _full(error: ServerFullError, url: str, options: SessionOptions) -> ServerFullError:
    return ServerFullError(
        f"the server at {shown(url)} is full: {error.active_sessions}/{error.max_sessions} sessions active, for "
        f"{options.capacity_timeout_s:g} s. Serve it with a larger max_concurrent_envs (the capacity is worker "
        "processes x max_concurrent_envs; training needs batch_size x group_size, and as many for evaluation), "
        "or run fewer episodes at a time",
        error.active_sessions,
        error.max_sessions,
    )
