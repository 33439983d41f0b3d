"""The user's own `openai` client makes the requests."""

import asyncio

import openai
import pytest

from tiltyard.errors import ConfigurationError, PolicyError, PromptTooLongError
from tiltyard.policies.openai import OpenAI
from tiltyard.testing.openai_server import Answer, OpenAIServer
from tiltyard.types import Prompt, ToolCall

USER = [{"role": "user", "content": "Hi", "noise": 1}]


def ask(kind, server, **options):
    """Ask once through a client of this kind."""

    async def asked():
        client = kind(base_url=server.base_url, api_key="sk-client", **{"max_retries": 0, **options})
        try:
            async with OpenAI("m", client=client) as api:
                return await api.reply(Prompt(USER, USER), max_tokens=7)
        finally:
            closing = client.close()
            if closing is not None:
                await closing

    return asyncio.run(asked())


KINDS = pytest.mark.parametrize("kind", [openai.OpenAI, openai.AsyncOpenAI])


@KINDS
def test_a_client_makes_the_request(kind):
    """With its own key; the body is ours, white-listed as ever."""
    call = ToolCall("move", {"steps": 2}, "c1")
    with OpenAIServer([call]) as server:
        reply = ask(kind, server)
        assert [(one.name, one.arguments, one.id) for one in reply.tool_calls] == [("move", {"steps": 2}, "c1")]
        assert server.headers[0]["authorization"] == "Bearer sk-client"
        assert server.bodies[0] == {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 7}


@KINDS
def test_a_client_retries_by_its_own_rules(kind):
    """Ours are not added to them."""
    with OpenAIServer(["Hello"], faults=[Answer(status=429, headers={"Retry-After-Ms": "1"})] * 2) as server:
        with pytest.raises(PolicyError, match="answered 429"):
            ask(kind, server)
        assert server.requests == 1
        assert ask(kind, server, max_retries=1).text == "Hello"
        assert server.requests == 3


@KINDS
def test_a_clients_errors_are_ours(kind):
    """Too long is truncated, the rest failed."""
    long, broken, slow = (
        Answer(status=400, error="maximum context length is 8"),
        Answer(disconnect=True),
        Answer(latency_s=60),
    )
    with OpenAIServer([], faults=[long, broken, slow]) as server:
        with pytest.raises(PromptTooLongError):
            ask(kind, server)
        with pytest.raises(PolicyError, match="gave no answer: APIConnectionError"):
            ask(kind, server)
        with pytest.raises(PolicyError, match="gave no answer: APITimeoutError"):
            ask(kind, server, timeout=0.1)


@pytest.mark.parametrize("options", [{"base_url": "http://x/v1"}, {"api_key": "x"}, {"token_ids": "llama.cpp"}])
def test_a_client_excludes_what_it_has_itself(options):
    """Two addresses would be one too many."""
    client = openai.OpenAI(base_url="http://host/v1", api_key="x")
    with pytest.raises(ConfigurationError, match="a client has its own"):
        OpenAI("m", client=client, **options)
    client.close()
