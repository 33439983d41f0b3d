"""How a sandbox comes to be: made once, although a server is full, restarting or slow to answer."""

import time
from collections.abc import Callable, Mapping

from tiltyard._boundary import reason
from tiltyard._optional import require
from tiltyard.envs.agent.held import EPISODE, HeldSandbox
from tiltyard.envs.agent.options import Place, SandboxOptions
from tiltyard.envs.agent.sdk import Provider, SandboxCallError, nobody_there, status
from tiltyard.errors import ConfigurationError, LostSessionError, ServerFullError

FULL = frozenset({429, 503})
PASSING = frozenset({429, 500, 502, 503, 504})
"""Answers of a server that may have another one in a moment."""

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 2.0


def provider_of(place: Place) -> tuple[Provider, str]:
    """The server of a place and the template there; without a server, the local one of this process, started now.

    Raises:
        MissingExtraError: The extra `sandbox` is not installed.
        ConfigurationError: No sandboxes can be made on this machine.
    """
    if place.api_url is not None:
        return Provider(place.api_url, place.api_key or "dummy", place.data_url), place.template or ""
    server = require("tiltyard.sandbox.server", "sandbox").shared_server()
    return Provider(server.url, place.api_key or server.api_key, server.url), place.template or "base"


def open_sandbox(
    provider: Provider,
    template: str,
    options: SandboxOptions,
    metadata: Mapping[str, str],
    wanted: Callable[[], bool],
) -> HeldSandbox:
    """Make a sandbox, trying again as long as `start_timeout_s` says while the server is full or away.

    Args:
        provider: The server.
        template: What it is made from.
        options: How it is made.
        metadata: Whose it is.
        wanted: False once nobody waits for it any more; one that was made by then is killed.

    Raises:
        ServerFullError: The server had no room in that time.
        LostSessionError: It could not be reached, or failed, in that time; or nobody wants it any more.
        ConfigurationError: It does not know the template, the key or the SDK's form of the request.
    """
    deadline = time.monotonic() + options.start_timeout_s
    wait_s = FIRST_WAIT_S
    while True:
        try:
            made = provider.create(template, options.timeout_s, metadata, options.envs)
        except SandboxCallError as error:
            _refuse(provider, template, error)
            if not _none_made(error):
                _sweep(provider, metadata)  # it may have been made although no answer came
            if not wanted() or time.monotonic() + wait_s >= deadline:
                raise _gave_up(provider, error, options.start_timeout_s) from error
            time.sleep(wait_s)
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)
            continue
        except BaseException:
            _sweep(provider, metadata)  # Ctrl-C: the request may be under way
            raise
        held = HeldSandbox(provider, made, options.timeout_s, refresh=options.refresh)
        if not wanted():
            held.release()
            raise LostSessionError(f"sandbox {held.sandbox_id} was closed while it was being made")
        return held


def _refuse(provider: Provider, template: str, error: SandboxCallError) -> None:
    """Raise what trying again would not change."""
    code, said = status(error), reason(error.__cause__ or error)
    if code == 405:
        version = getattr(require("e2b.api.metadata", "sandbox"), "package_version", "?")
        raise ConfigurationError(
            f"{provider.url} does not take this SDK's way of making a sandbox ({said}): e2b {version} is installed; "
            "since 2.51 it asks at POST /v2/sandboxes, before at POST /sandboxes. Update the server, or install the "
            "other kind: pip install 'e2b<2.51' for an older server, 'e2b>=2.51' for a newer one"
        ) from error
    if code in (401, 403) or type(error.__cause__).__name__ == "AuthenticationException":
        raise ConfigurationError(f"{provider.url} refused the api_key ({said}); give api_key= or set E2B_API_KEY")
    if code == 404:
        raise ConfigurationError(f"{provider.url} has no template {template!r} ({said}); build it there first")
    if code is not None and code < 500 and code not in PASSING:
        raise ConfigurationError(f"{provider.url} refused to make a sandbox of template {template!r}: {said}")


def _gave_up(provider: Provider, error: SandboxCallError, after_s: float) -> LostSessionError:
    said = reason(error.__cause__ or error)
    if status(error) in FULL:
        return ServerFullError(f"{provider.url} had no room for a sandbox for {after_s:g} s: {said}")
    return LostSessionError(f"no sandbox could be made at {provider.url} for {after_s:g} s: {said}")


def _none_made(error: SandboxCallError) -> bool:
    """Whether there can be no sandbox: nobody took the connection, or the answer was a refusal."""
    return status(error) in FULL or nobody_there(error)


def _sweep(provider: Provider, metadata: Mapping[str, str]) -> None:
    """Kill what was made under this episode's id; where that fails too the server's own time-out ends it."""
    try:
        for name, _ in provider.listed({EPISODE: metadata[EPISODE]}):
            provider.kill(name)
    except SandboxCallError:
        return
