"""Questions to one server, each asked until it is answered, refused for good, or out of time."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tiltyard.errors import PolicyError
from tiltyard.policies.answer import decode
from tiltyard.policies.connections import ConnectionFailedError, DeadlineError, Response
from tiltyard.policies.retries import Retries, retry_after_s
from tiltyard.policies.server_errors import error_inside, is_retried, named_error, server_error
from tiltyard.policies.wire import encode


class Posts(Protocol):
    """What makes a request, once."""

    base_url: str

    async def post(self, url: str, body: bytes, timeout_s: float) -> Response:
        """Send one request; raises `ConnectionFailedError`, `DeadlineError` or a `PolicyError`."""
        ...

    async def enter(self) -> None:
        """Keep connections on the running loop until the matching `leave`."""
        ...

    async def leave(self) -> None:
        """Close them when nobody uses them any more."""
        ...


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt after which another one may do better; `asked_s` is the pause that the server asked for."""

    error: PolicyError
    asked_s: float | None = None


class Attempts:
    """Makes requests again where that may help; the server's secret is in none of its errors.

    Attributes:
        requests: How many attempts were made.
        retried: How many of them were made again.
    """

    def __init__(self, posts: Posts, retries: Retries, timeout_s: float, secret: str) -> None:
        self.requests = 0
        self.retried = 0
        self._posts = posts
        self._retries = retries
        self._timeout_s = timeout_s
        self._secret = secret

    async def ask(self, url: str, body: Mapping[str, Any], deadline: float) -> Any:
        """The JSON that the server answers to a request, by `deadline` on the monotonic clock.

        Raises:
            PromptTooLongError: The server says that the prompt does not fit.
            PolicyError: It refused, or there was no answer in time.
        """
        payload = encode(body)
        attempt = 0
        while True:
            outcome = await self._attempt(url, payload, deadline)
            if not isinstance(outcome, Failure):
                return outcome
            attempt += 1
            if attempt > self._retries.max_retries:
                raise _gave_up(outcome, f"after {attempt} attempts")
            delay = self._retries.delay_s(attempt, outcome.asked_s)
            if time.monotonic() + delay >= deadline:
                raise _gave_up(outcome, f"as timeout_s={self._timeout_s:g} leaves no time for attempt {attempt + 1}")
            self.retried += 1
            await asyncio.sleep(delay)

    async def _attempt(self, url: str, payload: bytes, deadline: float) -> Any:
        """One attempt: the JSON that came, or a `Failure`.

        Raises:
            PolicyError: Another attempt would do no better.
        """
        self.requests += 1
        try:
            response = await self._posts.post(url, payload, max(deadline - time.monotonic(), 0.001))
        except ConnectionFailedError as error:
            return Failure(PolicyError(f"{url} gave no answer: {self._redacted(str(error))}"))
        except DeadlineError as error:
            raise PolicyError(f"{url} did not answer within timeout_s={self._timeout_s:g}") from error
        asked_s = retry_after_s(response.retry_after)
        if response.status != 200:
            words = self._redacted(response.payload.decode("utf-8", "replace"))
            return _failed(response.status, server_error(response.status, words, url), asked_s)
        try:
            data = decode(response.payload)
        except ValueError as error:
            return Failure(PolicyError(f"{url} answered what is not JSON: {error}"), asked_s)
        if (inside := error_inside(data)) is not None:
            status, words = inside
            return _failed(status, named_error(status, self._redacted(words), url), asked_s)
        return data

    def _redacted(self, text: str) -> str:
        return text.replace(self._secret, "***") if self._secret else text


def _failed(status: int, error: PolicyError, asked_s: float | None) -> Failure:
    """A failure where another attempt may do better; raised where it would not."""
    if type(error) is PolicyError and is_retried(status):
        return Failure(error, asked_s)
    raise error


def _gave_up(failure: Failure, when: str) -> PolicyError:
    error = PolicyError(f"{failure.error}; given up {when}")
    error.__cause__ = failure.error
    return error
