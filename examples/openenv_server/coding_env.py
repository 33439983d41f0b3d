"""A coding environment for a server of several sessions: Python in the interpreter of smolagents, and a task.

The model writes code; what it prints is the observation. A run that prints the answer earns 1 and ends the episode.
"""

# pyright: reportMissingImports=false
# openenv comes with an extra of its own; types are checked without it too.

import random
from typing import Any
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.tools.local_python_executor import PyExecutor


class CodeAction(Action):
    """Python to run; what earlier actions of the episode defined is still there."""

    code: str


class CodeObservation(Observation):
    """What running it printed."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0


class CodingEnvironment(Environment[CodeAction, CodeObservation, State]):
    """One task an episode. Like most environments it does not say whether several of it may live in one process."""

    def __init__(self, steps: int = 5) -> None:
        super().__init__()
        self.steps = steps
        self._state = State()
        self._executor = PyExecutor()
        self._answer = ""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> CodeObservation:
        numbers = random.Random(seed).sample(range(10, 99), 5)
        self._answer = str(sum(n * n for n in numbers))
        self._executor = PyExecutor()
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return CodeObservation(stdout=f"Print the sum of the squares of {numbers}.")

    def step(self, action: CodeAction, timeout_s: float | None = None, **kwargs: Any) -> CodeObservation:
        self._state.step_count += 1
        ran = self._executor.run(action.code)
        right = ran.stdout.strip() == self._answer
        return CodeObservation(
            stdout=ran.stdout,
            stderr=ran.stderr,
            exit_code=ran.exit_code,
            reward=float(right),
            done=right or self._state.step_count == self.steps,
        )

    @property
    def state(self) -> State:
        return self._state


class ConcurrentCodingEnvironment(CodingEnvironment):
    """The same, for many sessions in one process.

    That is true of it: each instance has an interpreter of its own and touches no file, global or directory. Look for
    these before you write this line over an environment of somebody else.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
