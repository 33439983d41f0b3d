"""Environments that worker processes can import."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from tiltyard import Env, StepResult, ToolError
from tiltyard.testing.guess import GuessToolEnv
from tiltyard.types import Reply, Task, Turn

DEADLY = {"text": "deadly"}
"""The task that ends the worker."""


class CountEnv(Env):
    """Counts its steps. Each tool is something that can happen to an environment."""

    def __init__(self, start: int = 0, log: str | None = None) -> None:
        self.start = start
        self.count = 0
        self.seen: Any = None
        self.log = log
        self.thread = threading.get_ident()

    def reset(self, trajectory=None):
        self.count = self.start
        self.seen = trajectory
        if trajectory == DEADLY:
            os._exit(7)
        return StepResult(f"task {trajectory}", 0.25, False, {"pid": os.getpid()})

    def step(self, tool_name, arguments):
        self.count += 1
        return getattr(self, f"do_{tool_name}")(**arguments)

    def do_add(self, number=1):
        self.count += number - 1
        return StepResult(
            str(self.count), 1.0, self.count >= 100, {"same_thread": self.thread == threading.get_ident()}
        )

    def do_sleep(self, seconds):
        time.sleep(seconds)
        return StepResult("slept", 0.0)

    def do_pid(self):
        return StepResult(str(os.getpid()))

    def do_mistake(self):
        raise ToolError("try another number")

    def do_raise(self):
        raise ValueError("the environment broke")

    def do_fail(self, kind):
        raise_one(kind)

    def do_die(self):
        os._exit(7)

    def do_stop(self):
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(60)  # another thread than this one may be the first to stop
        return StepResult("went on")

    def do_spawn(self):
        return StepResult(str(subprocess.Popen(["sleep", "600"]).pid))

    def do_unpicklable(self):
        return StepResult("a lock", info={"lock": threading.Lock()})

    def tools(self):
        return [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]

    def evaluate(self, trajectories, **kwargs):
        return [float(len(one)) + kwargs.get("more", 0) for one in trajectories]

    def close(self):
        if self.log is not None:
            with Path(self.log).open("a") as file:
                file.write("closed\n")


class ToolFail(Exception):
    """Cannot be rebuilt from its arguments."""

    def __init__(self, code, where):
        super().__init__(f"code {code} at {where}")


class Holder(Exception):
    """Cannot be pickled."""

    def __init__(self):
        super().__init__("holds a lock")
        self.lock = threading.Lock()


def raise_one(kind):
    if kind == "arguments":
        raise ToolFail(3, "here")
    if kind == "lock":
        raise Holder
    if kind == "chain":
        try:
            raise KeyError("the first")
        except KeyError as error:
            raise RuntimeError("the second") from error
    if kind == "exit":
        raise SystemExit(3)
    if kind == "local":

        class Local(Exception):
            pass

        raise Local("made in a function")


class WordEnv:
    """A text environment with rows."""

    dataset_size = 4
    system_prompt = "Say the word."

    def __init__(self):
        self.word = ""

    def reset(self, seed=None, row_index=None, evaluation=False):
        self.word = f"{'held out' if evaluation else 'row'} {row_index} {seed}"
        return self.word, {}

    def step(self, action):
        return f"you said {action}", float(action == self.word), True, False, {}


class SeedEnv:
    """A text environment without rows, which shows a tool after its first reset only."""

    def reset(self, seed=None):
        self.tools = [{"type": "function", "function": {"name": f"tool_{seed}"}}]
        return f"seed {seed}", {"first": True}

    def step(self, action):
        if action == "mistake":
            raise ToolError("say something else")
        return "next", None, False, action == "cut", {}


class TalkEnv:
    """A `TurnEnv`."""

    def start(self, task: Task) -> Turn:
        return Turn(({"role": "user", "content": f"seed {task.seed}"},))

    def reply(self, reply: Reply) -> Turn:
        return Turn(({"role": "user", "content": reply.text.upper()},), 1.0, done=True)

    def tools(self):
        return []

    def close(self):
        pass


class LoneEnv(CountEnv):
    """Wants a process of its own."""

    own_process = True


class FailsToClose(CountEnv):
    def close(self):
        super().close()
        raise OSError("it does not close")


class FailsOnce(CountEnv):
    """The second to be made, on all workers together, cannot be."""

    def __init__(self, log):
        super().__init__(log=log)
        with Path(f"{log}.made").open("a") as file:
            file.write("x")
        if Path(f"{log}.made").read_text() == "xx":
            raise LookupError("the data set is not there")


class NeverMade(CountEnv):
    """Cannot be made."""

    def __init__(self, how):
        super().__init__()
        if how == "exit":
            os._exit(5)
        time.sleep(600)


class NotPooled(CountEnv):
    not_pooled = "it is kept elsewhere"

    @staticmethod
    def made():
        return NotPooled()


class FlakyEnv(GuessToolEnv):
    """Guessing a number, until the task is of seed 3: then the first guess takes the worker with it."""

    def reset(self, trajectory=None):
        self.seed = (trajectory or {}).get("seed")
        return super().reset({"seed": 0})

    def step(self, tool_name, arguments):
        if self.seed == 3:
            os._exit(1)
        return StepResult("guess again")


def sample_package(folder):
    """A package `openspiel_env`, as openenv lays them out, and what it takes from openenv."""
    (folder / "openenv_bases.py").write_text(
        "import dataclasses\n"
        "class Action:\n"
        "    def __init__(self, action):\n"
        "        self.action = action\n"
        "@dataclasses.dataclass\n"
        "class Observation:\n"
        "    message: str\n"
        "    reward: float | None = None\n"
        "    done: bool = False\n"
        "class Environment:\n"
        "    def close(self):\n"
        "        pass\n"
    )
    (folder / "openspiel_env" / "server").mkdir(parents=True)
    (folder / "openspiel_env" / "__init__.py").write_text(
        "from .server.game import CardAction\n__all__ = ['CardAction']\n"
    )
    (folder / "openspiel_env" / "server" / "game.py").write_text(
        "from openenv_bases import Action, Environment, Observation\n"
        "class CardAction(Action):\n"
        "    pass\n"
        "class CardEnvironment(Environment):\n"
        "    def __init__(self, game):\n"
        "        self.game = game\n"
        "    def reset(self, seed=None, episode_id=None):\n"
        "        return Observation(f'{self.game} {seed}: your hand is 15')\n"
        "    def step(self, action, timeout_s=None):\n"
        "        return Observation(action.action, 1.0, action.action == 'stand')\n"
    )
