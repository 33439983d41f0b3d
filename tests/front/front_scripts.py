"""The environment, the scripts and the served model that the tests of the two rollouts share."""

import json
import threading
from dataclasses import replace

from tiltyard.envs.base import Env
from tiltyard.policies.base import TokenRequest
from tiltyard.rollout.api_multi_turn import APIMultiTurnRollout
from tiltyard.rollout.multi_turn import MultiTurnRollout
from tiltyard.testing.faulty import SPECIAL_TEXT
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.testing.tokens import ScriptedTokens
from tiltyard.tokens.renderer import make_renderer
from tiltyard.types import StepResult

ASK = {"role": "user", "content": "Go."}
TOKENIZER = byte_tokenizer("chatml_tools")
RENDERER = make_renderer(TOKENIZER, tools=True)


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def schema(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "description": f"{name}.", "parameters": parameters}}


class Lab(Env):
    """`add` earns 0.25, `submit` earns 1 and ends the episode, the others do what goes wrong elsewhere."""

    def __init__(self):
        self.let_go = threading.Event()
        self.closed = 0
        self.ran = []

    def reset(self, trajectory=None):
        self.ran = []
        return StepResult("begin")

    def step(self, tool_name, arguments):
        self.ran.append(tool_name)
        match tool_name:
            case "add":
                return StepResult(str(arguments["a"] + arguments["b"]), 0.25)
            case "submit":
                return StepResult("done", 1.0, True, {"success": arguments["text"] == "3"})
            case "echo":
                return StepResult(arguments["text"], 0.0)
            case "look":
                return StepResult(SPECIAL_TEXT, 0.0)
            case "dump":
                return StepResult("line of a log\n" * 10_000 + "Permission denied", 0.0)
            case "hang":
                self.let_go.wait()
                return StepResult("too late", 9.0)
            case _:
                raise ZeroDivisionError("the environment broke")

    def tools(self):
        number, text = {"type": "integer"}, {"type": "string"}
        bare = [schema(name) for name in ("look", "dump", "hang", "crash")]
        return [schema("add", a=number, b=number), schema("submit", text=text), schema("echo", text=text), *bare]

    def close(self):
        self.closed += 1
        self.let_go.set()


SUBMIT = call("submit", text="3")
SCRIPTS = {
    "parallel calls": [f"Two at once.\n{call('add', a=1, b=2)}\n{call('add', a=3, b=4)}", SUBMIT],
    "bad JSON": ['<tool_call>\n{"name": "add", "arguments": "{\\"a\\": 1, "}\n</tool_call>', SUBMIT],
    "done in mid-turn": [f"{SUBMIT}\n{call('add', a=1, b=2)}", "extra"],
    "length cut": [call("add", a=1, b=2), f"{call('add', a=1, b=2)}{'x' * 400}"],
    "unknown tool": [call("fly", to="moon"), SUBMIT],
    "time-out": [call("add", a=1, b=2), call("hang"), "extra"],
    "special tokens": [call("look"), "I see text."],
    "empty answer": [call("add", a=1, b=2), ""],
    "thinking": [f"<think>\nHow much is 1 + 2?\n</think>\n\n{call('add', a=1, b=2)}", SUBMIT],
    "unicode": [call("echo", text="héllo 🧪 \u202e 漢字"), "Das war schön. 🧪"],
    "huge output": [call("dump"), "Denied."],
    "env crash": [call("add", a=1, b=2), call("crash"), "extra"],
}
MAX_TOKENS = 200


class ServedTokens:
    """A served model that gives the ids of what it saw and sampled; it plays a script for every conversation."""

    def __init__(self, lines):
        self.lines = lines
        self.prompts = []
        self._tokens = ScriptedTokens(TOKENIZER, lines)
        self._seen = {}

    async def reply(self, prompt, *, max_tokens):
        self.prompts.append([dict(message) for message in prompt.messages])
        key = str(id(prompt.messages))
        if len(prompt.new) == len(prompt.messages):
            self._tokens.release([key])
            ids = RENDERER.opening(prompt.messages, prompt.tools)
        else:
            before, sampled = self._seen[key]
            ids = [*before, *sampled, *RENDERER.bridge(sampled, prompt.new, prompt.tools)]
        [sampled] = self._tokens.sample([TokenRequest(key, ids, max_tokens, 0)])
        self._seen[key] = (ids, sampled.ids)
        reply = RENDERER.parse(sampled.ids, sampled.finish_reason, tools=prompt.tools)
        return replace(reply, token_ids=sampled.ids, logprobs=sampled.logprobs, prompt_ids=tuple(ids))

    async def __aenter__(self):
        return self

    async def __aexit__(self, *raised):
        return None


def local(lines, **options):
    return MultiTurnRollout(ScriptedTokens(TOKENIZER, lines), renderer=RENDERER, **options)


def served(lines, **options):
    return APIMultiTurnRollout(ServedTokens(lines), **options)


BOTH = [local, served]


def rows(count, **fields):
    return [{"messages": [ASK], **fields} for _ in range(count)]
