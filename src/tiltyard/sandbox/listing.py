"""Which sandboxes a list request asks for, a page at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import parse_qsl, unquote

from starlette.datastructures import QueryParams

from tiltyard._boundary import shown
from tiltyard.sandbox.fields import digits
from tiltyard.sandbox.live_sandbox import LiveSandbox
from tiltyard.sandbox.refusal import RefusedError

MAX_PAGE = 100
STATES = ("running", "paused")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a list request asks for.

    Attributes:
        metadata: Every one of these must be there, with this value.
        states: The state must be one of these.
        template: Only sandboxes of this template; None = of any.
        started_after: Only those started at this time of day or later; None = all.
        newest_first: The order, over all pages.
        limit: How many a page has.
        after: The number of the last sandbox of the page before; None = from the start.
    """

    metadata: Mapping[str, str]
    states: Sequence[str]
    template: str | None
    started_after: float | None
    newest_first: bool
    limit: int
    after: int | None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of sandboxes, and the token that asks for the next one; None after the last."""

    sandboxes: Sequence[LiveSandbox]
    next_token: str | None


def wanted(query: QueryParams) -> Wanted:
    """Read a list request.

    Raises:
        RefusedError: A value cannot be read.
    """
    states = [state for given in query.getlist("state") for state in given.split(",") if state]
    for state in states:
        if state not in STATES:
            raise RefusedError("invalid_argument", f"state must be one of {STATES}, got {state!r}")
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RefusedError("invalid_argument", f"order must be 'asc' or 'desc', got {order!r}")
    return Wanted(
        metadata=_metadata(query.get("metadata", "")),
        states=states or STATES,
        template=query.get("template") or None,
        started_after=_time(query["startedAfter"]) if query.get("startedAfter") else None,
        newest_first=order == "desc",
        limit=_limit(query.get("limit") or str(MAX_PAGE)),
        after=_token(query["nextToken"]) if query.get("nextToken") else None,
    )


def page(sandboxes: Sequence[LiveSandbox], want: Wanted) -> Page:
    """The sandboxes that are wanted, from where the page before ended."""
    found = sorted(
        (sandbox for sandbox in sandboxes if _matches(sandbox, want)),
        key=lambda sandbox: sandbox.number,
        reverse=want.newest_first,
    )
    shown = found[: want.limit]
    return Page(shown, str(shown[-1].number) if len(found) > len(shown) else None)


def _matches(sandbox: LiveSandbox, want: Wanted) -> bool:
    asked = sandbox.asked
    passed = want.after is None or (sandbox.number < want.after if want.newest_first else sandbox.number > want.after)
    return (
        passed
        and sandbox.state in want.states
        and (want.template is None or asked.template == want.template)
        and (want.started_after is None or sandbox.started_at >= want.started_after)
        and all(asked.metadata.get(key) == value for key, value in want.metadata.items())
    )


def _metadata(text: str) -> dict[str, str]:
    """Clients quote keys and values, join them as a query, and quote the query again: the last is undone already."""
    return {unquote(key): unquote(value) for key, value in parse_qsl(text, keep_blank_values=True)}


def _limit(text: str) -> int:
    try:
        limit = int(text)
    except ValueError:
        limit = 0
    if not 1 <= limit <= MAX_PAGE:
        raise RefusedError("invalid_argument", f"limit must be from 1 to {MAX_PAGE}, got {text!r}")
    return limit


def _time(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise RefusedError(
            "invalid_argument", f"startedAfter must be a time such as 2026-01-31T12:00:00Z: {error}"
        ) from error


def _token(text: str) -> int:
    number = digits(text)
    if number is None:
        raise RefusedError("invalid_argument", f"nextToken {shown(text)} is none of this server's")
    return number
