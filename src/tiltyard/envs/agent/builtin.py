"""The tools that a sandbox has before any are registered."""

from typing import TYPE_CHECKING, Any

from tiltyard.types import StepResult, ToolSchema

if TYPE_CHECKING:
    from tiltyard.envs.agent.env import AgentEnv


def _schema(name: str, description: str, required: tuple[str, ...], **properties: str) -> ToolSchema:
    parameters = {
        "type": "object",
        "properties": {key: {"type": "string", "description": text} for key, text in properties.items()},
        "required": list(required),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


RUN_COMMAND = _schema(
    "run_command",
    "Run a command with bash in the sandbox and read what it prints.",
    ("command",),
    command="The command, as for bash -c.",
    cwd="The directory to run it in.",
)
WRITE_FILE = _schema(
    "write_file",
    "Write a file in the sandbox; its directory is made, and a file of that name is replaced.",
    ("path", "content"),
    path="Where the file is.",
    content="All of its text.",
)
READ_FILE = _schema("read_file", "Read a file in the sandbox.", ("path",), path="Where the file is.")


def run_command(env: "AgentEnv", arguments: dict[str, Any]) -> StepResult:
    """Run what the model asks for; how it ended is in `info`."""
    result = env.execute(arguments["command"], arguments.get("cwd"))
    info: dict[str, Any] = {"exit_code": result.exit_code}
    if result.timed_out:
        info["timed_out"] = True
    if result.cut():
        info["observation_truncated"] = True
    return StepResult(result.text(), None, info=info)


def write_file(env: "AgentEnv", arguments: dict[str, Any]) -> StepResult:
    """Write the model's file."""
    size = env.write_file(arguments["path"], arguments["content"])
    return StepResult(f"Wrote {size} bytes to {arguments['path']}.", None)


def read_file(env: "AgentEnv", arguments: dict[str, Any]) -> StepResult:
    """Read a file for the model."""
    return StepResult(env.read_file(arguments["path"]), None)


BUILT_IN = ((RUN_COMMAND, run_command), (WRITE_FILE, write_file), (READ_FILE, read_file))
