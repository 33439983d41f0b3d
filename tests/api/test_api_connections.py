"""Connections: kept for a run, closed after it, bounded, through the right proxy."""

import asyncio
import gc
import threading

import pytest

from tiltyard.errors import ConfigurationError, PolicyError
from tiltyard.policies.base import Sampling
from tiltyard.policies.connections import proxy_for
from tiltyard.policies.openai import OpenAI
from tiltyard.testing.openai_server import Answer, OpenAIServer
from tiltyard.types import Prompt

USER = [{"role": "user", "content": "Hi"}]
PROMPT = Prompt(USER, USER)


async def ask_often(api, count):
    async with api:
        return [reply.text for reply in await asyncio.gather(*(api.reply(PROMPT) for _ in range(count)))]


async def ask_in_turn(api, count):
    async with api:
        return [(await api.reply(PROMPT)).text for _ in range(count)]


def test_a_run_keeps_its_connection():
    """One connection serves all replies that come one after the other."""
    with OpenAIServer(["Hello"]) as server:
        assert asyncio.run(ask_in_turn(OpenAI("m", server.base_url), 5)) == ["Hello"] * 5
        assert server.connections == 1


def test_a_reply_outside_of_a_run_leaves_nothing_open():
    """A single question needs no `async with`; a session that is left open would warn here."""
    with OpenAIServer(["Hello"]) as server:
        api = OpenAI("m", server.base_url)
        assert asyncio.run(api.reply(PROMPT)).text == "Hello"
        del api
        gc.collect()


def test_one_object_serves_event_loops_one_after_the_other_and_at_one_time():
    """Each loop has connections of its own."""
    with OpenAIServer(["Hello"], latency_s=0.02) as server:
        api = OpenAI("m", server.base_url)
        said = [asyncio.run(ask_often(api, 2)) for _ in range(2)]
        threads = [threading.Thread(target=lambda: said.append(asyncio.run(ask_often(api, 2)))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert said == [["Hello", "Hello"]] * 6


def test_runs_that_overlap_on_one_loop_do_not_close_each_others_connections():
    """The last one to leave closes them."""

    async def overlap(api):
        async with api:
            async with api:
                await api.reply(PROMPT)
            return (await api.reply(PROMPT)).text

    with OpenAIServer(["Hello"]) as server:
        assert asyncio.run(overlap(OpenAI("m", server.base_url))) == "Hello"
        assert server.connections == 1


def test_max_connections_bounds_the_requests_on_their_way():
    """More wait for their turn."""
    with OpenAIServer(["Hello"], latency_s=0.01) as server:
        assert asyncio.run(ask_often(OpenAI("m", server.base_url, max_connections=3), 12)) == ["Hello"] * 12
        assert (server.most_at_once, server.connections) == (3, 3)


def test_an_answer_that_is_too_large_fails_its_episode_only():
    """The bound is explicit, and the connection is not poisoned."""
    with OpenAIServer(
        ["x" * 5000], faults=[None, Answer(raw=b'{"choices": [{"message": {"content": "y"}}]}')]
    ) as server:
        api = OpenAI("m", server.base_url, max_response_bytes=1000)
        with pytest.raises(PolicyError, match="more than max_response_bytes=1000 bytes"):
            asyncio.run(api.reply(PROMPT))
        assert asyncio.run(api.reply(PROMPT)).text == "y"


def test_a_prompt_of_megabytes_is_sent():
    """In pieces, without holding up the loop."""
    said = [{"role": "user", "content": "é" * 2_000_000}]
    with OpenAIServer(["Hello"]) as server:
        assert asyncio.run(OpenAI("m", server.base_url).reply(Prompt(said, said))).text == "Hello"
        assert server.bodies[0]["messages"] == said


def test_address_and_key_come_from_the_environment_where_they_are_not_given(monkeypatch):
    """As for any other client of this kind."""
    with OpenAIServer(["Hello"]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url + "/")
        monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
        assert asyncio.run(OpenAI("m").reply(PROMPT)).text == "Hello"
        assert server.headers[0]["authorization"] == "Bearer sk-env"


def test_without_a_key_none_is_sent(monkeypatch):
    """Local servers want none."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with OpenAIServer(["Hello"]) as server:
        asyncio.run(OpenAI("m", server.base_url).reply(PROMPT))
        assert "authorization" not in server.headers[0]


def test_fields_of_every_request_reach_the_server():
    """Sampling parameters, then extra_body, which has the last word; `with_fields` adds to a copy."""
    with OpenAIServer(["Hello"]) as server:
        api = OpenAI("m", server.base_url, sampling=Sampling(0.5, 0.9, 7), extra_body={"min_p": 0.1, "top_k": 8})
        asyncio.run(api.reply(PROMPT, max_tokens=5))
        asyncio.run(api.with_fields({"temperature": 0}).reply(PROMPT))
        fields = [
            {key: value for key, value in body.items() if key not in ("model", "messages")} for body in server.bodies
        ]
    first = {"temperature": 0.5, "top_p": 0.9, "top_k": 8, "min_p": 0.1}
    assert fields == [{**first, "max_tokens": 5}, {**first, "temperature": 0}]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"base_url": "localhost:8000"}, "base_url must be like"),
        ({"base_url": "ftp://host/v1"}, "base_url must be like"),
        ({"base_url": "http://a b/v1"}, "base_url must be like"),
        ({"base_url": "http://host:99999/v1"}, "base_url must be like"),
        ({"base_url": 5}, "base_url must be like"),
        (
            {"base_url": "http://host/v1?api-version=2"},
            "has no query, got 'http://host/v1.api-version=2'.*default_query",
        ),
        ({"model": None}, "model must be the model's name"),
        ({"model": ""}, "model must be the model's name"),
        ({"sampling": [1]}, "sampling must be a dict of request fields"),
        ({"extra_body": "x"}, "extra_body must be a dict of request fields"),
        ({"timeout_s": 0}, "timeout_s must be > 0"),
        ({"timeout_s": "5"}, "timeout_s must be > 0"),
        ({"max_connections": 0}, "max_connections must be > 0"),
        ({"max_response_bytes": 0}, "max_response_bytes must be > 0"),
        ({"max_retries": -1}, "max_retries must be >= 0"),
        ({"retry_delay_s": -1.0}, "retry_delay_s must be > 0"),
        ({"token_ids": "sglang"}, "token_ids must be 'vllm', 'llama.cpp' or None"),
        ({"extra_body": {"n": 4}}, "n must be 1"),
        ({"client": object()}, "client must be an openai.OpenAI"),
    ],
)
def test_arguments_that_cannot_work_are_refused_at_construction(options, says):
    """Before anything is sent."""
    with pytest.raises(ConfigurationError, match=says):
        OpenAI(**{"model": "m", **({} if "client" in options else {"base_url": "http://host/v1"}), **options})


def test_a_key_may_have_the_line_break_of_its_file_and_nothing_else_that_is_no_header():
    """The server would get a header that it cannot read; and what the key is stays unsaid."""
    with OpenAIServer(["Hello"]) as server:
        assert asyncio.run(OpenAI("m", server.base_url, "secret\n").reply(PROMPT)).text == "Hello"
        assert server.headers[0]["authorization"] == "Bearer secret"
    for key in ("sec\nret", 7):
        with pytest.raises(ConfigurationError, match="api_key must be one line of text") as refused:
            OpenAI("m", "http://host/v1", key)
        assert str(key) not in str(refused.value)


@pytest.fixture
def environ(monkeypatch):
    """The environment's proxies, and no others."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch.setenv


def test_proxies_of_the_environment_are_honoured(environ):
    """By scheme, then the one for all."""
    environ("HTTPS_PROXY", "http://proxy:3128")
    environ("ALL_PROXY", "http://all:1")
    assert proxy_for("https://api.example.com/v1") == "http://proxy:3128"
    assert proxy_for("http://api.example.com/v1") == "http://all:1"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "127.8.8.8", "[::1]:8000", "0.0.0.0", "a.localhost"])
def test_this_machine_is_never_asked_through_a_proxy(environ, host):
    """A proxy cannot reach the server that was started here."""
    environ("HTTP_PROXY", "http://proxy:3128")
    assert proxy_for(f"http://{host}/v1") is None


def test_no_proxy_is_honoured(environ):
    """Names that the user excepts."""
    environ("HTTP_PROXY", "http://proxy:3128")
    environ("NO_PROXY", "example.com")
    assert proxy_for("http://api.example.com/v1") is None
    assert proxy_for("http://api.example.org/v1") == "http://proxy:3128"


def test_a_proxy_that_does_not_speak_http_is_refused(environ):
    """It would be ignored otherwise."""
    environ("ALL_PROXY", "socks5://proxy:1080")
    with pytest.raises(ConfigurationError, match="is a socks5 one"):
        proxy_for("http://api.example.com/v1")


def test_a_proxy_carries_the_requests(environ):
    """The request line names the server, and the proxy answers for it."""
    with OpenAIServer(["Hello"]) as server:
        environ("HTTP_PROXY", server.base_url.removesuffix("/v1"))
        assert asyncio.run(OpenAI("m", "http://model.example/v1").reply(PROMPT)).text == "Hello"
        assert server.headers[0]["host"] == "model.example"
