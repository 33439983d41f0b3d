"""Plays both example environments from a script, without a model: run `python examples/play_by_hand.py`."""

from typing import Any

from guess import Guess
from shelf import Shelf

from tiltyard import Limits, Reply, Task, ToolCall, Trajectory, episode


def play(env: Any, replies: list[Reply]) -> Trajectory:
    """Answer an episode's prompts with these replies, one a turn."""
    flow = episode(env, Task(seed=4), Limits(max_turns=len(replies)))
    next(flow)
    for reply in replies:
        try:
            flow.send(reply)
        except StopIteration as end:
            return end.value
    raise RuntimeError("the episode goes on, but no reply is left")


def main() -> None:
    """Print both conversations."""
    texts = [Reply("5"), Reply("3"), Reply("4")]
    calls = [Reply("", (ToolCall("open_book", {"number": number}, id=f"call_{number}"),)) for number in range(3)]
    for trajectory in (play(Guess(), texts), play(Shelf(), calls)):
        for message in trajectory.messages:
            print(f"{message['role']:>9}: {message['content'] or message.get('tool_calls')}")
        print(f"ended with {trajectory.ending.value!r}, rewards {trajectory.rewards}\n")


if __name__ == "__main__":
    main()
