"""Write a small program that hidden tests accept: the reward is the share of them that pass.

Where the code runs is one key, `place`: `sandbox` is real Python in a sandbox; `openenv` is the interpreter of an
OpenEnv coding server (`examples/openenv_server/coding_env.py`), which walks the syntax tree. Tasks, tools and reward
are the same, so what differs between two runs is where the code was executed.
"""

import json
import re
import secrets
from pathlib import Path
from typing import Any, Protocol

import yaml

from tiltyard import AgentEnv, ConfigurationError, Env, OpenEnvClient, StepResult, ToolSchema, process_observation

HERE = Path(__file__).parent
TASKS: list[dict[str, str]] = yaml.safe_load((HERE / "tasks.yml").read_text(encoding="utf-8"))
HELD_OUT = 4
"""The last tasks are for evaluation."""


class Place(Protocol):
    """Where the code of an episode runs."""

    def begin(self) -> None: ...

    def run(self, program: str) -> str: ...

    def passed(self, solution: str, tests: str, names: list[str]) -> set[str]: ...

    def close(self) -> None: ...


class Sandbox:
    """Real Python, with files, processes and decorators."""

    def __init__(self, **options: Any) -> None:
        self.env = AgentEnv(**options)

    def begin(self) -> None:
        self.env.reset()

    def run(self, program: str) -> str:
        self.env.write_file("program.py", program)
        return self.env.run_command({"command": "python3 program.py", "timeout": 10})

    def passed(self, solution: str, tests: str, names: list[str]) -> set[str]:
        self.env.reset()  # nothing that the model wrote, changed or left running is there
        order = {"nonce": secrets.token_hex(16), "program": f"{solution}\n{tests}", "tests": names}
        self.env.write_file("order.json", json.dumps(order))
        self.env.write_file("runner.py", (HERE / "runner.py").read_text(encoding="utf-8"))
        lines = self.env.run_command({"command": "python3 -I runner.py"}).splitlines()
        found = [line.removeprefix(order["nonce"]) for line in lines if line.startswith(order["nonce"])]
        return set(json.loads(found[0])) if len(found) == 1 else set()

    def close(self) -> None:
        self.env.close()


class Interpreter:
    """Python as an interpreter of the syntax tree understands it, behind a URL."""

    def __init__(self, **options: Any) -> None:
        self.client = OpenEnvClient(**options)

    def begin(self) -> None:
        self.client.reset()

    def run(self, program: str) -> str:
        return process_observation(self.client.execute({"code": program}).observation)

    def passed(self, solution: str, tests: str, names: list[str]) -> set[str]:
        self.client.reset()
        if not (self._runs(solution) and self._runs(tests)):
            return set()
        return {name for name in names if self._runs(f"{name}()")}

    def close(self) -> None:
        self.client.close()

    def _runs(self, code: str) -> bool:
        nonce = secrets.token_hex(16)
        said = self.client.execute({"code": f"{code}\nprint('{nonce}')"}).observation
        return said["exit_code"] == 0 and nonce in said["stdout"]


PLACES = {"sandbox": Sandbox, "openenv": Interpreter}


class CodeTasks(Env):
    """One task an episode; `submit` runs the hidden tests and ends it."""

    max_turns = 8
    system_prompt = (
        "You write Python. Write your solution with write_solution, try it with run_python, then submit it once. "
        "Only the standard library is there."
    )
    dataset_size = len(TASKS) - HELD_OUT
    evaluation_size = HELD_OUT

    def __init__(self, place: str = "sandbox", options: dict[str, Any] | None = None) -> None:
        """Set it up.

        Args:
            place: Where the code runs: `sandbox` or `openenv`.
            options: Those of `AgentEnv` or of `OpenEnvClient`, such as their URL.
        """
        if place not in PLACES:
            raise ConfigurationError(f"place must be one of {', '.join(PLACES)}, got {place!r}")
        self.place: Place = PLACES[place](**(options or {}))

    def reset(self, trajectory: dict[str, Any] | None = None) -> StepResult:
        given = trajectory or {}
        row = given.get("row_index") or 0
        self.task = TASKS[self.dataset_size + row if given.get("evaluation") else row]
        self.solution = ""
        self.place.begin()
        return StepResult(self.task["prompt"], None)

    def step(self, tool_name: str, arguments: dict[str, Any]) -> StepResult:
        if tool_name == "write_solution":
            self.solution = arguments["code"]
            return StepResult("Written.", 0.0)
        if tool_name == "run_python":
            return StepResult(self.place.run(f"{self.solution}\n{arguments['code']}"), 0.0)
        names = re.findall(r"^def (test_\w+)", self.task["tests"], re.MULTILINE)
        passed = self.place.passed(self.solution, self.task["tests"], names)
        info = {"success": len(passed) == len(names), "passed": sorted(passed)}
        return StepResult(f"{len(passed)} of {len(names)} tests pass.", len(passed) / len(names), True, info)

    def tools(self) -> list[ToolSchema]:
        code = {"code": {"type": "string", "description": "Python."}}
        return [
            _tool("write_solution", "Write the whole solution; it replaces what you wrote before.", code),
            _tool("run_python", "Run your solution with this code behind it, and read what it prints.", code),
            _tool("submit", "Hand the solution in: the hidden tests are run, and the episode ends.", {}),
        ]

    def close(self) -> None:
        self.place.close()


def _tool(name: str, description: str, properties: dict[str, Any]) -> ToolSchema:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
