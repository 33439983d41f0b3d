"""The official clients of openenv, in a process of their own: `python official_player.py URL KIND [SCAFFOLDS]`."""

import asyncio
import json
import sys

sys.modules["gradio"] = None  # no page is shown, and importing it takes seconds

from openenv.core.generic_client import GenericEnvClient  # noqa: E402 - after the line above


def guess(url):
    """A whole episode with `.sync()`."""
    with GenericEnvClient(base_url=url).sync() as env:
        opened = env.reset(seed=4)
        answers = [env.step({"message": text}) for text in ("9", "5")]
        state = env.state()
    told = [[answer.observation["message"], answer.reward, answer.done] for answer in answers]
    return {"opened": opened.observation["message"], "answers": told, "steps": state["step_count"]}


def refused(url):
    """What it makes of typed errors."""
    told = []
    with GenericEnvClient(base_url=url).sync() as env:
        env.reset()
        try:
            env.step({"text": "9"})
        except RuntimeError as error:
            told.append(str(error))
    return told


def full(url):
    """What it makes of a full server."""
    with GenericEnvClient(base_url=url).sync() as first:
        first.reset()
        try:
            with GenericEnvClient(base_url=url).sync() as second:
                second.reset()
        except RuntimeError as error:
            return str(error)
    return "there was room"


def many(url):
    """Sixteen sessions on one loop."""

    async def one(seed):
        async with GenericEnvClient(base_url=url) as env:
            await env.reset(seed=seed)
            return (await env.step({"message": str(seed % 9 + 1)})).reward

    async def play():
        return await asyncio.gather(*(one(seed) for seed in range(16)))

    return asyncio.run(play())


def typed(url, scaffolds):
    """The client of a package that `openenv init` wrote."""
    sys.path.insert(0, scaffolds)
    from echo_env import EchoAction, EchoEnv  # noqa: PLC0415 - found on the path that was just added

    with EchoEnv(base_url=url).sync() as env:
        opened = env.reset()
        answer = env.step(EchoAction(message="hi"))
        state = env.state()
    return [opened.observation.echoed_message, answer.observation.echoed_message, answer.reward, state.step_count]


def tools(url):
    """The actions of an MCP environment."""
    call = {"type": "call_tool", "tool_name": "add", "arguments": {"a": 2, "b": 3}}
    with GenericEnvClient(base_url=url).sync() as env:
        env.reset()
        listed = env.step({"type": "list_tools"}).observation["tools"]
        answer = env.step(call)
        failed = env.step({**call, "tool_name": "fail", "arguments": {"why": "no reason"}})
    return [
        [tool["name"] for tool in listed],
        answer.observation["result"]["data"],
        answer.reward,
        failed.observation["error"]["error_type"],
    ]


if __name__ == "__main__":
    url, kind, *rest = sys.argv[1:]
    print(json.dumps(globals()[kind](url, *rest)))
