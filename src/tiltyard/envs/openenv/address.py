"""Where a server is: every form of URL that people write, as the one that is dialled."""

import json
import re
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

from tiltyard._local import is_this_machine
from tiltyard.errors import ConfigurationError, LostSessionError

_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_SECRET = re.compile(r"((?:token|key|secret|password)=)[^&]*", re.IGNORECASE)


def ws_url(base_url: str) -> str:
    """The address of the sessions of the server at `base_url`.

    http(s) and ws(s) are taken in any case, with a path prefix, a query, a trailing slash, or the final `/ws` itself;
    without a scheme it is ws.

    Raises:
        ConfigurationError: It is no such URL.
    """
    given = base_url.strip() if isinstance(base_url, str) else ""
    if not given or re.search(r"\s", given):
        raise ConfigurationError(f"base_url must be a URL such as http://127.0.0.1:8000, got {base_url!r}")
    parts = _split(given if "://" in given else f"ws://{given}", base_url)
    scheme = _SCHEMES.get(parts.scheme.lower())
    if scheme is None or not parts.hostname:
        raise ConfigurationError(
            f"base_url must begin with http://, https://, ws:// or wss:// and name a host, got {base_url!r}"
        )
    path = parts.path.rstrip("/")
    path = path if path.endswith("/ws") else f"{path}/ws"
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit((scheme, f"{user}{at}{host.lower()}", path, parts.query, ""))


def http_url(url: str, endpoint: str) -> str:
    """The address of another endpoint, such as `schema`, beside the sessions at `url`."""
    parts = urlsplit(url)
    scheme = "https" if parts.scheme == "wss" else "http"
    return urlunsplit((scheme, parts.netloc, f"{parts.path.removesuffix('/ws')}/{endpoint}", parts.query, ""))


def shown(url: str) -> str:
    """The URL for a message: without its password and tokens."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    netloc = f"{user.partition(':')[0]}:***@{host}" if at else host
    return urlunsplit((parts.scheme, netloc, parts.path, _SECRET.sub(r"\1***", parts.query), ""))


def is_local(url: str) -> bool:
    """True for this machine's own addresses, which no proxy is asked for."""
    return is_this_machine(urlsplit(url).hostname or "")


def get_json(url: str, endpoint: str, *, token: str | None = None, timeout_s: float = 10.0) -> dict[str, Any] | None:
    """What the server says at another endpoint; None when it has none of that name.

    Raises:
        LostSessionError: The server cannot be reached, or answers with something that is no JSON object.
    """
    address = http_url(url, endpoint)
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"} if token else {})  # noqa: S310  # http(s) by construction
    handlers = [urllib.request.ProxyHandler({})] if is_local(url) else []
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code in (404, 405):
            return None
        raise LostSessionError(f"{shown(address)} answered HTTP {error.code}") from error
    except (OSError, ValueError) as error:
        raise LostSessionError(f"{shown(address)} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise LostSessionError(f"{shown(address)} answered with a {type(found).__name__}; expected a JSON object")
    return found


def _split(url: str, given: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # reading it checks it
    except ValueError as error:
        raise ConfigurationError(f"base_url {given!r} is not a URL: {error}") from error
    return parts
