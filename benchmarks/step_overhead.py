"""What a turn costs through `TextTurns` and `ToolTurns`, the loop included, over calling the environment.

Run: python -m benchmarks.step_overhead [--turns 20000]

CPU-microseconds a turn, best of several runs: one episode of many turns, driven in line with replies
that are made beforehand, minus the same steps made on the environment alone. `*_flat` is the cost of
the last tenth of the turns over that of the first: 1 when a turn costs the same however many came before.
The last line is one JSON object.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable
from typing import Any

from tiltyard.envs.base import Env
from tiltyard.rollout.episode import episode
from tiltyard.rollout.limits import Limits
from tiltyard.types import Reply, StepResult, Task, ToolCall, ToolSchema

REPEATS = 5
SCHEMA: ToolSchema = {
    "type": "function",
    "function": {
        "name": "move",
        "description": "Move on the board.",
        "parameters": {
            "type": "object",
            "properties": {
                "direction": {"type": "string", "enum": ["north", "east", "south", "west"]},
                "steps": {"type": "integer", "minimum": 1, "maximum": 9},
                "note": {"type": "string", "description": "Why."},
            },
            "required": ["direction", "steps"],
            "additionalProperties": False,
        },
    },
}


class WalkText:
    """A text environment that does nearly nothing."""

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Begin."""
        del seed
        return "You stand at the gate.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a step."""
        return f"You went {action}.", 0.0, False, False, {}


class WalkTools(Env):
    """A tool environment that does nearly nothing."""

    def reset(self, trajectory: dict[str, Any] | None = None) -> StepResult:
        """Begin."""
        del trajectory
        return StepResult("You stand at the gate.")

    def step(self, tool_name: str, arguments: dict[str, Any]) -> StepResult:
        """Take a step."""
        del tool_name
        return StepResult(f"You went {arguments['direction']}.")

    def tools(self) -> list[ToolSchema]:
        """The one tool."""
        return [SCHEMA]


def through_the_loop(env: object, replies: list[Reply]) -> list[float]:
    """CPU-seconds at the start and after each tenth of the turns."""
    flow = episode(env, Task(seed=0), Limits(max_turns=len(replies) + 1))
    next(flow)
    send = flow.send
    marks = [time.process_time()]
    tenth = len(replies) // 10
    for start in range(0, tenth * 10, tenth):
        for reply in replies[start : start + tenth]:
            send(reply)
        marks.append(time.process_time())
    flow.close()
    return marks


def directly(step: Callable[[Reply], object], replies: list[Reply]) -> float:
    """CPU-seconds a turn of the environment alone."""
    began = time.process_time()
    for reply in replies:
        step(reply)
    return (time.process_time() - began) / len(replies)


def measure(make: Callable[[], Any], step: Callable[[Any, Reply], object], replies: list[Reply]) -> tuple[float, float]:
    """Microseconds a turn over the environment alone, and last tenth over first; medians of the repeats."""
    costs, flats = [], []
    for _ in range(REPEATS):
        gc.collect()
        marks = through_the_loop(make(), replies)
        env = make()
        env.reset()
        alone = directly(lambda reply, env=env: step(env, reply), replies)
        costs.append(((marks[-1] - marks[0]) / len(replies) - alone) * 1e6)
        flats.append((marks[-1] - marks[-2]) / (marks[1] - marks[0]))
    return sorted(costs)[REPEATS // 2], sorted(flats)[REPEATS // 2]


def step_tools(env: WalkTools, reply: Reply) -> object:
    """The call of a reply, on the environment alone."""
    call = reply.tool_calls[0]
    return env.step(call.name, call.arguments or {})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--turns", type=int, default=20_000)
    turns = parser.parse_args().turns
    texts = [Reply("north") for _ in range(turns)]
    call = ToolCall("move", {"direction": "north", "steps": 3})
    calls = [Reply("", tool_calls=(call,)) for _ in range(turns)]
    text_us, text_flat = measure(WalkText, lambda env, reply: env.step(reply.text), texts)
    tools_us, tools_flat = measure(WalkTools, step_tools, calls)
    print(f"{turns} turns, median of {REPEATS} runs")
    print(f"TextTurns: {text_us:.1f} us a turn over the environment alone (target <= 60); last/first {text_flat:.2f}")
    print(
        f"ToolTurns: {tools_us:.1f} us a turn over the environment alone (target <= 120); last/first {tools_flat:.2f}"
    )
    figures = {"text_us": text_us, "tools_us": tools_us, "text_flat": text_flat, "tools_flat": tools_flat}
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
