"""What the server answers when it cannot do what a request asks."""

from typing import Any, Literal

from tiltyard.errors import TiltyardError

Code = Literal[
    "invalid_argument",
    "unauthenticated",
    "permission_denied",
    "not_found",
    "already_exists",
    "failed_precondition",
    "resource_exhausted",
    "no_space",
    "too_large",
    "unimplemented",
    "unavailable",
    "deadline_exceeded",
    "internal",
]

STATUS: dict[str, int] = {
    "invalid_argument": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "already_exists": 409,
    "failed_precondition": 409,
    "resource_exhausted": 429,
    "no_space": 507,
    "too_large": 413,
    "unimplemented": 501,
    "unavailable": 502,
    "deadline_exceeded": 504,
    "internal": 500,
}
"""The HTTP status of each code: the one that the clients of this protocol have an exception for."""

CONNECT = {"no_space": "resource_exhausted", "too_large": "resource_exhausted"}
"""Codes that a remote call spells in another way than a plain request."""


class RefusedError(TiltyardError):
    """A request that is answered with an error.

    Attributes:
        code: What is wrong, as the Connect protocol names it.
        message: What was wrong, what was given, what to do.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS[self.code]

    def as_plain(self) -> dict[str, Any]:
        """The body of a plain request's answer."""
        return {"code": self.status, "message": self.message}

    def as_connect(self) -> dict[str, Any]:
        """The body of a remote call's answer, and the error at the end of a stream."""
        return {"code": CONNECT.get(self.code, self.code), "message": self.message}


def no_such_sandbox(sandbox_id: str) -> RefusedError:
    """A sandbox that is not here; clients look for the words "was not found"."""
    return RefusedError("not_found", f"the sandbox {sandbox_id!r} was not found: it was killed, or its time is over")


def sandbox_ended(why: str) -> RefusedError:
    """The end of a stream whose sandbox died: the words are those that clients of every version look for."""
    return RefusedError(
        "unavailable", f"the sandbox was not found: the sandbox was killed or reached its end of life ({why})"
    )
