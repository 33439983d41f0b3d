"""Calls of one turn: in order, or at once where their tools are independent."""

import threading

import pytest

from tiltyard.envs.turns import as_turns
from tiltyard.errors import ToolCrashError, ToolError
from tiltyard.tools.base import tool
from tiltyard.tools.manager import ToolManager
from tiltyard.types import Reply, StepResult, ToolCall

WAIT_S = 10


def turn_of(manager, *calls):
    return as_turns(manager).reply(
        Reply("", tuple(ToolCall(name, args, name + str(n)) for n, (name, args) in enumerate(calls)))
    )


def contents(turn):
    return [message["content"] for message in turn.messages]


def meeting(parties, *, parallel):
    """A tool whose calls wait for each other: they end only when all of them run at the same time."""
    barrier = threading.Barrier(parties)

    def meet(name: str) -> str:
        """Wait for the others.

        Args:
            name: Who comes.
        """
        barrier.wait(WAIT_S)
        return f"{name} came"

    return tool(meet, parallel=parallel)


def test_independent_calls_run_at_once_and_their_results_keep_the_order_of_the_calls():
    """The second may end first (TP-05)."""
    manager = ToolManager([meeting(3, parallel=True)])
    turn = turn_of(manager, *(("meet", {"name": name}) for name in "abc"))
    assert contents(turn) == ["a came", "b came", "c came"]
    assert [message["tool_call_id"] for message in turn.messages] == ["meet0", "meet1", "meet2"]


def recorder(log, *, parallel):
    def note(text: str) -> str:
        """Write down.

        Args:
            text: What.
        """
        log.append((text, threading.current_thread().name))
        return text

    return tool(note, parallel=parallel)


def test_calls_run_in_order_on_one_thread_by_default():
    """A tool that says nothing is not taken to be independent."""
    log = []
    turn_of(ToolManager([recorder(log, parallel=False)]), *(("note", {"text": text}) for text in "abc"))
    assert log == [(text, threading.current_thread().name) for text in "abc"]


def test_one_tool_that_is_not_independent_puts_the_whole_turn_in_order():
    """It might depend on what the others do."""
    log = []

    def other() -> str:
        """Do something else."""
        log.append(("other", threading.current_thread().name))
        return ""

    turn_of(ToolManager([recorder(log, parallel=True), tool(other)]), ("note", {"text": "a"}), ("other", {}))
    assert log == [(text, threading.current_thread().name) for text in ("a", "other")]


def test_a_call_that_cannot_run_does_not_keep_the_others_in_order():
    """Unknown tools and bad arguments are answered beside them."""
    manager = ToolManager([meeting(2, parallel=True)])
    turn = turn_of(manager, ("meet", {"name": "a"}), ("nope", {}), ("meet", {"name": "b"}), ("meet", {}))
    assert contents(turn)[0::2] == ["a came", "b came"]
    assert turn.info["tool_errors"] == 2


def test_a_tool_error_of_one_independent_call_is_its_own():
    """The others keep their results."""

    def divide(by: int) -> float:
        """Divide one.

        Args:
            by: By what.
        """
        if by == 0:
            raise ToolError("cannot divide by 0")
        return 1 / by

    turn = turn_of(ToolManager([tool(divide, parallel=True)]), *(("divide", {"by": by}) for by in (1, 0, 2)))
    assert contents(turn) == ["1.0", "Error: cannot divide by 0", "0.5"]


def test_a_crash_of_one_independent_call_fails_the_episode_when_all_have_ended():
    """No thread of the turn goes on behind it; the first crash in the order of the calls is told."""
    ended = []

    def work(item: int) -> str:
        """Work.

        Args:
            item: On what.
        """
        ended.append(item)
        if item:
            raise ZeroDivisionError(f"item {item}")
        return "fine"

    with pytest.raises(ToolCrashError, match="item 1"):
        turn_of(ToolManager([tool(work, parallel=True)]), *(("work", {"item": item}) for item in (0, 1, 2)))
    assert sorted(ended) == [0, 1, 2]


class Ending:
    """A tool that steps an environment, and claims to be independent."""

    parallel = True

    def __init__(self):
        self.ran = []

    def tool_info(self):
        parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}
        return {"type": "function", "function": {"name": "act", "description": "Act.", "parameters": parameters}}

    def __call__(self, tool_name, arguments):
        return self.step(tool_name, arguments).observation

    def step(self, tool_name, arguments):
        self.ran.append(arguments["n"])
        return StepResult("over", 1.0, done=True)


def test_a_step_of_an_environment_is_never_independent():
    """It may end the episode, and the calls behind it are then not run (TE-01)."""
    act = Ending()
    turn = turn_of(ToolManager([act]), ("act", {"n": 1}), ("act", {"n": 2}))
    assert act.ran == [1]
    assert (turn.done, turn.reward, turn.info["not_run"]) == (True, 1.0, ("act1",))
