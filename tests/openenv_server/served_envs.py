"""Environments that the tests serve."""

import itertools
import os
import sys
import threading
import time

from tiltyard import Env, StepResult, ToolError, Turn

made = itertools.count()


class Guess:
    """A number between 1 and 9 that follows from the seed; three guesses."""

    dataset_size = 6
    evaluation_size = 2
    max_turns = 3
    alive = 0

    def __init__(self, target=None):
        self.given = target
        self.closed = False
        Guess.alive += 1

    def reset(self, seed=None, row_index=None, evaluation=False):
        self.target = self.given or (seed or 0) % 9 + 1
        self.left = 3
        split = "held-out" if evaluation else "training"
        return f"{split} row {row_index}: guess a number from 1 to 9", {"row": row_index}

    def step(self, action):
        self.left -= 1
        if not action.strip().isdigit():
            raise ToolError("give one number")
        won = int(action) == self.target
        hint = "right" if won else "higher" if int(action) < self.target else "lower"
        return hint, 1.0 if won else 0.0, won, self.left == 0 and not won, {"success": won}

    def close(self):
        assert not self.closed, "closed twice"
        self.closed = True
        Guess.alive -= 1


class Told:
    """Does what it is told to."""

    def __init__(self, slow_s=0.0):
        time.sleep(slow_s)
        self.number = next(made)
        self.thread = None

    def reset(self, seed=None):
        self.thread = threading.get_ident()
        return {"text": "go", "number": self.number}, {}

    def step(self, action):
        word, _, rest = action.partition(" ")
        match word:
            case "sleep":
                time.sleep(float(rest))
            case "raise":
                raise ValueError(rest)
            case "die":
                os._exit(3)
            case "nan":
                return "x", float("nan"), False, False, {}
            case "none":
                return "x", None, False, False, {}
            case "big":
                return "x" * int(rest), 1.0, False, False, {}
            case "image":
                return {"text": "a picture", "image": b"\x89PNG\r\n"}, 0.0, False, False, {}
            case "parts":
                return [{"type": "text", "text": "two"}, {"type": "text", "text": "parts"}], 0.0, False, False, {}
            case "surrogate":
                return "\ud83e tail", 0.0, False, False, {}
            case "object":
                return object(), 0.0, False, False, {}
            case "thread":
                return str(threading.get_ident() == self.thread), 0.0, False, False, {}
            case "pid":
                return str(os.getpid()), 0.0, False, False, {}
        return f"{action} {self.number}", 0.0, False, False, {}

    def close(self):
        return


class Waits(Told):
    """Begins every episode in the same way."""

    def reset(self, seed=None):
        return "go", {}


class Everything(Told):
    """Takes any reset argument."""

    def reset(self, seed=None, **row):
        return f"seed {seed}, row {sorted(row.items())}", {}


class HangingClose(Told):
    """Is never closed."""

    def close(self):
        time.sleep(3600)


class Broken:
    """Cannot be made a second time: the first is the one that the server looks at."""

    first = True

    def __init__(self):
        if not Broken.first:
            raise OSError("the licence server is down")
        Broken.first = False

    def reset(self, seed=None):
        return "", {}

    def step(self, action):
        return "", 0.0, True, False, {}


SUM = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add to the sum.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer"}},
            "required": ["number"],
            "additionalProperties": False,
        },
    },
}


class Sum(Env):
    """A sum that tool calls add to, until it is the row's."""

    def reset(self, trajectory=None):
        self.task = trajectory or {}
        self.total = 0
        return StepResult(f"Reach {self.task.get('goal', 5)}.")

    def step(self, tool_name, arguments):
        if arguments["number"] < 0:
            raise ToolError("only numbers above 0")
        self.total += arguments["number"]
        done = self.total >= self.task.get("goal", 5)
        return StepResult(f"The sum is {self.total}.", float(done), done, {"total": self.total})

    def tools(self):
        return [SUM]


class Talk:
    """A `TurnEnv` that ends when it is greeted back."""

    def start(self, task):
        opening = {"role": "user", "content": f"Hello from seed {task.seed}."}
        return Turn(({"role": "system", "content": "Be kind."}, opening))

    def reply(self, reply):
        done = "hello" in reply.text.lower()
        text = "Goodbye." if done else f"You made {len(reply.tool_calls)} calls."
        return Turn(({"role": "user", "content": text},), float(done), done)

    def tools(self):
        return []

    def close(self):
        return


class Exits:
    """Ends, as a script would, when it is told to."""

    def reset(self, seed=None):
        return "go", {}

    def step(self, action):
        if action == "exit":
            sys.exit("no licence")
        return action, 0.0, False, False, {}
