"""The E2B SDK as far as it is used: one configuration bound once, and its errors told apart."""

import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, ParamSpec, TypeVar

from tiltyard._boundary import guarded, reason
from tiltyard._optional import require
from tiltyard.errors import ConfigurationError, EnvError

P = ParamSpec("P")
T = TypeVar("T")

MOST_AT_ONCE = 160
"""Requests of all episodes of a process that may be under way: the SDK has 200 connections, and heartbeats, questions
and kills must find one while every episode runs a command."""

ASK_TIMEOUT_S = 10.0
"""How long the control plane may take for an answer about a sandbox that exists."""

CREATE_TIMEOUT_S = 60.0

_places = threading.BoundedSemaphore(MOST_AT_ONCE)
_used_in: int | None = None


class SandboxCallError(EnvError):
    """A call of the SDK raised; what it raised is the cause."""


class State(StrEnum):
    """What the control plane says about a sandbox."""

    RUNNING = "running"
    GONE = "gone"
    UNKNOWN = "unknown"


def call(what: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the SDK.

    Raises:
        SandboxCallError: It raised; `what` names the call.
    """
    return guarded(what, SandboxCallError, function, *args, **kwargs)


@contextmanager
def place() -> Iterator[None]:
    """Wait for one of the places that all episodes of the process share, and hold it."""
    with _places:
        yield


def check_process() -> None:
    """See that this is the process in which the SDK was first used.

    Raises:
        ConfigurationError: It was used in a parent and this process was forked: its connections would hang.
    """
    global _used_in  # noqa: PLW0603  # the SDK's connections are one to a process too
    if _used_in is None:
        _used_in = os.getpid()
    elif _used_in != os.getpid():
        raise ConfigurationError(
            f"sandboxes were used in process {_used_in}, and process {os.getpid()} was forked from it: the E2B SDK's "
            "connections do not survive a fork. Start workers with multiprocessing's 'spawn', or make the first "
            "AgentEnv in the workers only"
        )


class Provider:
    """One server of sandboxes.

    Attributes:
        url: Where it is.
    """

    def __init__(self, url: str, api_key: str, data_url: str | None) -> None:
        """Bind the SDK to the server; asks nothing of it, and writes no environment variable.

        Raises:
            MissingExtraError: The extra `sandbox` is not installed.
        """
        e2b = require("e2b", "sandbox")
        config = require("e2b.connection_config", "sandbox").ConnectionConfig
        options: dict[str, Any] = {"api_url": url, "api_key": api_key, "debug": False}
        if data_url is not None:
            options["sandbox_url"] = data_url
        known = inspect.signature(config.__init__).parameters
        # A create that is repeated by itself can leave a second sandbox; keys of other servers have other forms.
        options |= {name: value for name, value in (("retries", 0), ("validate_api_key", False)) if name in known}
        self.url = url
        self._e2b = e2b
        self._errors = require("e2b.exceptions", "sandbox")
        self._class: Any = e2b.E2B(**options).Sandbox

    def create(self, template: str, timeout_s: int, metadata: Mapping[str, str], envs: Mapping[str, str]) -> Any:
        """Make a sandbox that is killed, not paused, at its time-out.

        Raises:
            SandboxCallError: There is none; or nobody knows, when no answer came.
        """
        with place():
            return call(
                f"creating a sandbox at {self.url}",
                self._class.create,
                template=template,
                timeout=timeout_s,
                metadata=dict(metadata),
                envs=dict(envs),
                lifecycle={"on_timeout": "kill"},
                request_timeout=CREATE_TIMEOUT_S,
            )

    def kill(self, sandbox_id: str) -> None:
        """Kill a sandbox; one that is gone is no error.

        Raises:
            SandboxCallError: The server did not do it, or did not answer.
        """
        call(f"killing sandbox {sandbox_id}", self._class.kill, sandbox_id, request_timeout=ASK_TIMEOUT_S)

    def keep(self, sandbox_id: str, timeout_s: int) -> None:
        """Have the server keep a sandbox for so long from now.

        Raises:
            SandboxCallError: It does not have it, or did not answer.
        """
        what = f"keeping sandbox {sandbox_id} alive"
        call(what, self._class.set_timeout, sandbox_id, timeout_s, request_timeout=ASK_TIMEOUT_S)

    def state(self, sandbox_id: str) -> tuple[State, str]:
        """Ask the control plane about a sandbox: what it says, and how it said it."""
        try:
            what = f"asking for sandbox {sandbox_id}"
            info = call(what, self._class.get_info, sandbox_id, request_timeout=ASK_TIMEOUT_S)
        except SandboxCallError as error:
            said = reason(error.__cause__ or error)
            return (State.GONE if self.says_gone(error) else State.UNKNOWN), said
        state = str(getattr(info.state, "value", info.state))
        return (State.RUNNING if state == "running" else State.GONE), f"its state is {state!r}"

    def listed(self, metadata: Mapping[str, str]) -> list[tuple[str, Mapping[str, str]]]:
        """The ids and the metadata of the server's sandboxes that have all of these entries, paused ones too.

        Raises:
            SandboxCallError: The server did not answer.
        """
        return call(f"listing the sandboxes of {self.url}", self._listed, metadata)

    def says_gone(self, error: SandboxCallError) -> bool:
        """Whether an error of the control plane says that there is no such sandbox."""
        cause = error.__cause__
        return isinstance(cause, self._errors.NotFoundException) or status(error) in (404, 410)

    def is_argument_error(self, error: BaseException | None) -> bool:
        """Whether an exception says that what was asked cannot be done: the model's mistake, in a living sandbox."""
        kinds = ("InvalidArgumentException", "NotFoundException", "NotEnoughSpaceException")
        return isinstance(error, tuple(getattr(self._errors, kind) for kind in kinds))

    def is_timeout(self, error: BaseException | None) -> bool:
        """Whether an exception says that time ran out; the SDK says so of dead sandboxes too."""
        return isinstance(error, self._errors.TimeoutException)

    def _listed(self, metadata: Mapping[str, str]) -> list[tuple[str, Mapping[str, str]]]:
        pages = self._class.list(query=self._e2b.SandboxQuery(metadata=dict(metadata)))
        found: list[tuple[str, Mapping[str, str]]] = []
        while pages.has_next:
            found += [(info.sandbox_id, info.metadata or {}) for info in pages.next_items()]
        # What is listed is killed: a server that leaves the filter aside must not cost others their sandboxes.
        return [(name, told) for name, told in found if metadata.items() <= told.items()]


def status(error: SandboxCallError) -> int | None:
    """The HTTP status that a call failed with; None where there was no answer, or it is not known."""
    cause = error.__cause__
    known = getattr(cause, "status_code", None)
    if isinstance(known, int):
        return known
    head = str(cause).partition(":")[0].strip()
    return int(head) if head.isdigit() and len(head) == 3 else None


def nobody_there(error: SandboxCallError) -> bool:
    """Whether the request cannot have arrived: nobody took the connection."""
    return type(error.__cause__).__name__ == "ConnectError"
