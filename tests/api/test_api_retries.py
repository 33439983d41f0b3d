"""Attempts that failed are made again: which, after what pause, how often, and by when."""

import asyncio
import logging
import socket
import threading

import pytest

from tiltyard.errors import PolicyError, PromptTooLongError
from tiltyard.policies.openai import OpenAI
from tiltyard.policies.retries import Retries, retry_after_s
from tiltyard.testing.openai_server import Answer, OpenAIServer
from tiltyard.types import Prompt

USER = [{"role": "user", "content": "Hi"}]


def api_of(server, **options):
    return OpenAI("m", server.base_url, "sk-secret", **{"retry_delay_s": 0.001, **options})


def ask(api):
    return asyncio.run(api.reply(Prompt(USER, USER))).text


@pytest.mark.parametrize(("attempt", "longest"), [(1, 0.5), (2, 1.0), (3, 2.0), (7, 30.0), (10_000, 30.0)])
def test_pauses_double_up_to_the_longest(attempt, longest):
    """Half to all of the back-off: never at once, and never all episodes together."""
    delays = {Retries().delay_s(attempt) for _ in range(50)}
    assert longest / 2 <= min(delays) <= max(delays) <= longest
    assert len(delays) > 40


def test_the_pause_that_the_server_asks_for_is_kept():
    """And a little more, so that not all come back at the same moment."""
    delays = [Retries().delay_s(1, 4.0) for _ in range(50)]
    assert 4.0 <= min(delays) < max(delays) <= 5.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("Thu, 01 Jan 1970 00:01:00 GMT", 50.0),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header, seconds):
    """Anything else is as good as none."""
    assert retry_after_s(header, now=10.0) == seconds


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_a_status_that_may_change_is_tried_again(status):
    """The episode does not notice."""
    with OpenAIServer(["Hello"], faults=[Answer(status=status), Answer(status=status)]) as server:
        assert ask(api_of(server)) == "Hello"
        assert server.requests == 3


def test_a_connection_that_breaks_is_tried_again():
    """A server that closes without an answer, as one that restarts does."""
    with OpenAIServer(["Hello"], faults=[Answer(disconnect=True)]) as server:
        assert ask(api_of(server)) == "Hello"


@pytest.mark.parametrize("raw", [b"", b"<html>busy</html>", b'{"choices": [', b'{"error": {"code": 429}}'])
def test_an_answer_that_is_no_answer_is_tried_again(raw):
    """A gateway's page, half a body, an error with status 200."""
    with OpenAIServer(["Hello"], faults=[Answer(raw=raw)]) as server:
        assert ask(api_of(server)) == "Hello"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 301])
def test_a_refusal_is_not_tried_again(status):
    """It would be refused again."""
    with OpenAIServer([Answer(status=status, error="no, because")]) as server:
        with pytest.raises(PolicyError, match="no, because"):
            ask(api_of(server))
        assert server.requests == 1


def test_a_prompt_that_is_too_long_is_not_tried_again():
    """Also with the status 500 that llama.cpp's server has given it."""
    words = "the request exceeds the available context size"
    with OpenAIServer([Answer(status=500, error=words)]) as server:
        with pytest.raises(PromptTooLongError):
            ask(api_of(server))
        assert server.requests == 1


def test_attempts_are_bounded_and_the_last_words_are_told():
    """`max_retries` attempts after the first one."""
    with OpenAIServer([Answer(status=503, error="loading")]) as server:
        with pytest.raises(PolicyError, match=r"answered 503: loading .*given up after 4 attempts"):
            ask(api_of(server, max_retries=3))
        assert server.requests == 4


def test_a_pause_that_would_pass_the_deadline_is_not_begun():
    """A server that asks for an hour is told off now and not in an hour."""
    with OpenAIServer([Answer(status=429, error="later", headers={"Retry-After": "3600"})]) as server:
        with pytest.raises(PolicyError, match=r"later .*timeout_s=5 leaves no time for attempt 2"):
            ask(api_of(server, timeout_s=5))
        assert server.requests == 1


def test_a_server_that_never_answers_fails_at_the_deadline():
    """The deadline is of the whole reply."""
    never = Answer(latency_s=60)
    with OpenAIServer([never]) as server, pytest.raises(PolicyError, match=r"did not answer within timeout_s=0\.2"):
        ask(api_of(server, timeout_s=0.2))


def test_a_server_that_is_not_there_fails_with_its_address():
    """Nobody listens on the port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(PolicyError, match=f"{url}/chat/completions gave no answer: .*given up after 2 attempts"):
            ask(OpenAI("m", url, max_retries=1, retry_delay_s=0.001))


def test_a_server_that_comes_back_is_found():
    """Started again at the same address while the episode waits."""
    server = OpenAIServer(["Hello"])
    server.start()
    api = api_of(server, retry_delay_s=0.05, max_retries=60)
    server.stop()
    threading.Timer(0.2, server.start).start()
    try:
        assert ask(api) == "Hello"
        assert api.retried > 0
    finally:
        server.stop()


def test_the_key_is_in_no_error_no_log_and_no_repr(caplog):
    """Also where the server repeats it."""
    caplog.set_level(logging.DEBUG)
    with OpenAIServer([Answer(status=401, error="Incorrect API key provided: sk-secret")]) as server:
        api = api_of(server)
        with pytest.raises(PolicyError, match=r"provided: \*\*\*") as caught:
            ask(api)
        assert server.headers[0]["authorization"] == "Bearer sk-secret"
    seen = f"{caught.value!r} {caught.value.__cause__!r} {api!r} {caplog.text}"
    assert "secret" not in seen
