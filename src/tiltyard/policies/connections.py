"""HTTP connections to one server, kept for each event loop as long as something on it uses them."""

import asyncio
import io
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tiltyard._local import is_this_machine
from tiltyard._optional import require
from tiltyard.errors import ConfigurationError, PolicyError

aiohttp = require("aiohttp", "api")


LARGE_BODY_BYTES = 2**20
FILES_FOR_OTHERS = 128


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What bounds the traffic with one server.

    Attributes:
        max_connections: Requests on their way at one time, no more than the process may open; others wait.
        connect_timeout_s: For one attempt to connect.
        max_response_bytes: A longer answer fails its episode.
    """

    max_connections: int = 1024
    connect_timeout_s: float = 10.0
    max_response_bytes: int = 64 * 2**20

    def __post_init__(self) -> None:
        for name in ("max_connections", "connect_timeout_s", "max_response_bytes"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} must be > 0, got {getattr(self, name)!r}")


@dataclass(frozen=True, slots=True)
class Response:
    """An answer of any status."""

    status: int
    payload: bytes
    retry_after: str | None = None


class ConnectionFailedError(Exception):
    """No answer came: no connection, or one that broke."""


class DeadlineError(Exception):
    """No answer came in time."""


@dataclass(slots=True)
class _Kept:
    session: Any
    users: int = 0


class Connections:
    """Posts JSON to one server.

    A user of an event loop holds the loop's connections with `hold`; the last one to leave closes them. A request
    outside of it has a connection of its own. Thread-safe: a loop's connections are touched by its thread only.
    """

    def __init__(self, base_url: str, headers: dict[str, str], limits: HttpLimits) -> None:
        """Remember where to; nothing is opened.

        Raises:
            ConfigurationError: `base_url` is not an http(s) address, or the proxy for it cannot be used.
        """
        self.base_url = checked_url(base_url)
        self._headers = {**headers, "Content-Type": "application/json", "Accept-Encoding": "identity"}
        self._limits = limits
        self._proxy = proxy_for(self.base_url)
        self._kept: dict[asyncio.AbstractEventLoop, _Kept] = {}

    def __getstate__(self) -> dict[str, Any]:
        """What a worker needs to post as well: where to, and none of the connections of this process."""
        return {**self.__dict__, "_kept": {}}

    async def enter(self) -> None:
        """Keep the connections of the running loop open until the matching `leave`."""
        loop = asyncio.get_running_loop()
        kept = self._kept.get(loop)
        if kept is None:
            kept = self._kept[loop] = _Kept(self._session())
        kept.users += 1

    async def leave(self) -> None:
        """Close the connections of the running loop, if nobody else on it uses them."""
        loop = asyncio.get_running_loop()
        kept = self._kept[loop]
        kept.users -= 1
        if not kept.users:
            del self._kept[loop]
            await kept.session.close()

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """`enter` and `leave`."""
        await self.enter()
        try:
            yield
        finally:
            await self.leave()

    async def post(self, url: str, body: bytes, timeout_s: float) -> Response:
        """Send one request, once.

        Raises:
            ConnectionFailedError: Without an answer; another attempt may have one.
            DeadlineError: After `timeout_s`.
            PolicyError: The answer is larger than `max_response_bytes`.
        """
        kept = self._kept.get(asyncio.get_running_loop())
        if kept is None:
            async with self.hold():
                return await self.post(url, body, timeout_s)
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._limits.connect_timeout_s)
        try:
            async with kept.session.post(
                url, data=_sent(body), timeout=timeout, proxy=self._proxy, allow_redirects=False
            ) as response:
                return Response(response.status, await self._read(response), response.headers.get("Retry-After"))
        except aiohttp.ClientError as error:
            raise ConnectionFailedError(f"{type(error).__name__}: {error}") from error
        except TimeoutError as error:
            raise DeadlineError from error

    async def _read(self, response: Any) -> bytes:
        most = self._limits.max_response_bytes
        length = response.content_length
        if length is not None and length <= most:
            return await response.read()
        chunks, size = [], 0
        if length is None:
            async for chunk in response.content.iter_any():
                chunks.append(chunk)
                size += len(chunk)
                if size > most:
                    break
            else:
                return b"".join(chunks)
        response.close()
        raise PolicyError(f"the server's answer has more than max_response_bytes={most} bytes")

    def _session(self) -> Any:
        limit = min(self._limits.max_connections, most_sockets())
        connector = aiohttp.TCPConnector(limit=limit, ttl_dns_cache=300)
        return aiohttp.ClientSession(
            connector=connector, headers=self._headers, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        )


def most_sockets() -> int:
    """How many connections the process may have, some files for others left aside (`ulimit -n`)."""
    try:
        import resource  # noqa: PLC0415  # Windows has none, and no such limit
    except ModuleNotFoundError:
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else max(soft - FILES_FOR_OTHERS, 1)


def _sent(body: bytes) -> Any:
    """A body in the form in which a large one is sent piece by piece, without holding up the loop."""
    return body if len(body) <= LARGE_BODY_BYTES else io.BytesIO(body)


def checked_url(base_url: str) -> str:
    """The address without a slash at its end.

    Raises:
        ConfigurationError: It is not an http(s) address, or one that nothing can be put behind.
    """
    if not isinstance(base_url, str) or any(character.isspace() for character in base_url) or not _is_http(base_url):
        raise ConfigurationError(f"base_url must be like 'http://host:8000/v1', got {base_url!r}")
    if "?" in base_url or "#" in base_url:
        raise ConfigurationError(
            f"base_url ends where /chat/completions begins, so it has no query, got {base_url!r}; where a server needs "
            "one give client=openai.AsyncOpenAI(default_query=...)"
        )
    return base_url.rstrip("/")


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, a broken IPv6 address
        return False


def proxy_for(base_url: str) -> str | None:
    """The proxy that the environment names for an address (`HTTP_PROXY`, `NO_PROXY`, ...); None for this machine.

    The HTTP library's own `trust_env` is not used: with it `~/.netrc` could replace the API key.

    Raises:
        ConfigurationError: The proxy does not speak HTTP.
    """
    parts = urlsplit(base_url)
    if is_this_machine(parts.hostname or "") or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and urlsplit(proxy).scheme not in ("http", "https"):
        raise ConfigurationError(
            f"the proxy for {parts.hostname} is a {urlsplit(proxy).scheme or 'bare'} one; only http:// and https:// "
            "proxies are supported: set HTTPS_PROXY, or NO_PROXY for this host"
        )
    return proxy or None
