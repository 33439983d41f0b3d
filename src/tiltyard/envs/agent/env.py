"""`AgentEnv`: tools that work in a sandbox, a new one for each episode."""

import inspect
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from tiltyard._boundary import guarded, shown
from tiltyard._optional import require
from tiltyard.envs.agent.builtin import BUILT_IN, run_command
from tiltyard.envs.agent.held import reap
from tiltyard.envs.agent.options import Place, SandboxOptions, checked_run_id, commands
from tiltyard.envs.agent.output import CommandResult
from tiltyard.envs.agent.sdk import Provider, check_process
from tiltyard.envs.agent.session import SandboxSession
from tiltyard.envs.agent.template import CommandTemplate
from tiltyard.envs.base import Env
from tiltyard.envs.observation import TRUNCATED_MARK, clip_observation, process_observation
from tiltyard.envs.result import FAILURE, step_result
from tiltyard.errors import ConfigurationError, EpisodeOverError, RolloutError, ToolCrashError, ToolError
from tiltyard.tools.manager import ERROR
from tiltyard.tools.schema import ArgumentsCheck
from tiltyard.types import StepResult, ToolSchema

Handler = Callable[[Any, dict[str, Any]], "str | StepResult"]
"""Called with the environment and the arguments, which fit the tool's schema."""


@dataclass(frozen=True, slots=True)
class _SandboxTool:
    schema: ToolSchema
    check: ArgumentsCheck
    handler: Handler


class AgentEnv(Env):
    """An episode in a sandbox of its own, on any server that speaks the E2B API.

    `reset` makes the sandbox, `close` or the next `reset` kills it. It has no reward of its own: what a step earned is
    None, "not scored", unless the handler of a registered tool says otherwise. Score the episode with a reward
    function, with such a handler, or in a subclass. An instance plays one episode at a time; make as many as you like,
    on as many threads. `close` may come from any thread.

    What the model does wrong is text for the model: a command that fails, a file that is not there, arguments that do
    not fit. A sandbox that is gone, or a server that is, is not: the episode fails, unscored.

    Attributes:
        not_pooled: Why an `EnvPool` refuses it.
    """

    not_pooled = "its sandboxes already live on a server: make as many as you need, from threads"

    def __init__(  # noqa: PLR0913, PLR0917  # the options of the contract, each by its name
        self,
        template: str | None = None,
        api_url: str | None = None,
        api_key: str | None = None,
        sandbox_timeout: int = 300,
        command_timeout: float = 120,
        setup_commands: Sequence[str] | None = None,
        sandbox_envs: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        refresh_timeout: bool = True,
        include_default_tools: bool = True,
        *,
        run_id: str | None = None,
        start_timeout_s: float = 30.0,
    ) -> None:
        """Set the environment up; no server is asked.

        Args:
            template: What each sandbox is made from; required with a server that is not the local one.
            api_url: The server; None takes the variable E2B_API_URL, and without it a local server, started by the
                first `reset` and shared by all environments of the process.
            api_key: None takes the variable E2B_API_KEY, then "dummy": many servers check none.
            sandbox_timeout: Seconds that the server keeps a sandbox that nobody says is wanted, then kills it.
            command_timeout: Seconds that one command may take.
            setup_commands: Run after each creation; their output is the first observation, and one that fails fails
                the reset.
            sandbox_envs: Environment variables of the sandbox.
            metadata: Seen in the server's list of sandboxes, beside the run, episode, host and process.
            refresh_timeout: Say all along that the sandbox is wanted, while the model thinks too. With False the
                sandbox ends `sandbox_timeout` after its creation.
            include_default_tools: Whether there are `run_command`, `write_file` and `read_file`.
            run_id: Names the run in the metadata, for `reap`; None takes a name of this process.
            start_timeout_s: How long a server that is full or restarting is tried for.

        Raises:
            ConfigurationError: One of these cannot work; names it.
            MissingExtraError: The extra `sandbox` is not installed.
        """
        require("e2b", "sandbox")
        options = SandboxOptions(
            timeout_s=sandbox_timeout,
            command_timeout_s=command_timeout,
            setup_commands=commands(setup_commands),
            envs={} if sandbox_envs is None else sandbox_envs,
            metadata={} if metadata is None else metadata,
            refresh=refresh_timeout,
            start_timeout_s=start_timeout_s,
        )
        self._session = SandboxSession(Place.of(template, api_url, api_key), options)
        self._run_id = checked_run_id(run_id)
        self._over: str | None = "before the first reset()"
        self._closes = 0
        self._tools: dict[str, _SandboxTool] = {}
        for schema, handler in BUILT_IN if include_default_tools else ():
            self.register_tool(schema, handler)
        # What is left at exit is killed at once then, not one after the other.
        weakref.finalize(self, _let_go_later, self._session).atexit = False

    @property
    def sandbox(self) -> Any:
        """The SDK's handle of the episode's sandbox, for ptys, watches and whatever else it can do.

        Raises:
            EpisodeOverError: There is no sandbox.
        """
        return self._session.living().sandbox

    @property
    def sandbox_id(self) -> str | None:
        """The id of the episode's sandbox; None when there is none."""
        held = self._session.held
        return held.sandbox_id if held is not None else None

    def tools(self) -> list[ToolSchema]:
        """The built-in tools and those that were registered."""
        return [tool.schema for tool in self._tools.values()]

    def register_tool(self, schema: ToolSchema, handler: Handler) -> Self:
        """Add a tool that runs here, beside the sandbox; it takes the place of one of the same name.

        The handler gets this environment and the arguments. Text earns nothing; a `StepResult` may have a reward, and
        may end the episode. What it raises is told to the model, unless the sandbox is gone.

        Raises:
            ConfigurationError: The schema has no name, its parameters are not a JSON schema, or the handler is no plain
                function.
        """
        check = ArgumentsCheck(schema)
        if not callable(handler) or inspect.iscoroutinefunction(handler):
            raise ConfigurationError(
                f"the handler of tool {check.name!r} must be a function (env, arguments), not async; got "
                f"{shown(handler)}"
            )
        self._tools[check.name] = _SandboxTool(schema, check, handler)
        return self

    def register_command_tool(self, schema: ToolSchema, command: str) -> Self:
        """Add a tool that runs a command in the sandbox, its `{name}` replaced by the arguments, quoted for the shell.

        Raises:
            ConfigurationError: As `register_tool`; or a place for an argument is where quoting does not protect.
        """
        template = CommandTemplate(schema, command)

        def run_filled(env: Any, arguments: dict[str, Any]) -> StepResult:
            return run_command(env, {"command": template.filled(arguments)})

        return self.register_tool(schema, run_filled)

    def reset(self, trajectory: dict[str, Any] | None = None) -> StepResult:
        """Begin an episode: kill the old sandbox, make a new one, run the setup commands.

        Raises:
            RolloutError: There is no server, it is full, or a setup command failed; nothing is left behind.
            ConfigurationError: The server does not know the template, the key or this SDK.
        """
        del trajectory
        check_process()
        self._over = "after a reset() that failed"
        closes = self._closes
        self._session.open(self._run_id, lambda: self._closes == closes)
        try:
            observation, cut = clip_observation(self._session.set_up())
        except BaseException:
            self._session.let_go()
            raise
        self._over = None if self._closes == closes else "after close()"
        return StepResult(observation, None, info={TRUNCATED_MARK: True} if cut else {})

    def step(self, tool_name: str, arguments: dict[str, Any]) -> StepResult:
        """Run one tool call; what the model did wrong is the observation `Error: …`, and the episode goes on.

        Where the sandbox or its server is gone the result is `done`, its reward None, and `info` has the `error` and,
        as `failure`, the `RolloutError` with which rollouts end the episode.

        Raises:
            EpisodeOverError: The episode is over, or has not begun.
            ConfigurationError: This process was forked from one that used sandboxes.
        """
        if self._over is not None:
            raise EpisodeOverError(f"{tool_name!r} was called {self._over}; call reset() to begin an episode")
        check_process()
        try:
            result = self._called(tool_name, arguments)
        except ToolError as error:
            return _refused("failed", str(error))
        except RolloutError as error:
            self._over = "after the episode had failed"
            return StepResult("", None, True, {"error": str(error), FAILURE: error})
        if result.done or result.truncated:
            self._over = "after the end of the episode"
        text, cut = clip_observation(process_observation(result.observation))
        marks = {TRUNCATED_MARK: True} if cut else {}
        return StepResult(text, result.reward, result.done, {**result.info, **marks}, result.truncated)

    def run_command(self, arguments: Mapping[str, Any]) -> str:
        """Run a command, for handlers: `command`, and if wanted `cwd` and `timeout`, which the time limit bounds.

        Returns stdout, `[stderr]` and, where it is not 0, `[exit code: N]`, in 32,000 characters: streams are cut in
        the middle, the rest never is.

        Raises:
            ToolError: There is no command in the arguments, or one of them has a form that cannot be used.
            RolloutError: The sandbox or its server is gone.
        """
        return self.execute(arguments.get("command"), arguments.get("cwd"), arguments.get("timeout")).text()

    def execute(self, command: Any, cwd: Any = None, timeout_s: Any = None) -> CommandResult:
        """Run a command and return what it came to, with its exit code; more code than 0 is no exception.

        Args:
            command: For bash.
            cwd: Where it starts; None or "" takes the template's.
            timeout_s: A shorter limit than the environment's; a longer one, 0 and less are cut to it.

        Raises:
            ToolError: An argument has a form that cannot be used; or the sandbox does not take it.
            RolloutError: The sandbox or its server is gone.
        """
        return self._session.execute(command, cwd, timeout_s)

    def write_file(self, path: str, content: str) -> int:
        """Write a file in the sandbox; returns how many bytes it has.

        Raises:
            ToolError: The sandbox cannot write it.
            RolloutError: The sandbox or its server is gone.
        """
        return self._session.write_file(path, content)

    def read_file(self, path: str) -> str:
        """Read a file in the sandbox, as text; of a long one head and tail.

        Raises:
            ToolError: The sandbox cannot read it.
            RolloutError: The sandbox or its server is gone.
        """
        return self._session.read_file(path)

    def close(self) -> None:
        """Kill the sandbox; more than one call does no harm.

        Where the server does not answer that is logged and counted as leaked, and the sandbox ends `sandbox_timeout`
        after its last heartbeat.
        """
        self._closes += 1
        self._over = "after close()"
        self._session.let_go()

    @staticmethod
    def reap(run_id: str | None = None, api_url: str | None = None, api_key: str | None = None) -> list[str]:
        """Kill what runs left on a server, after a crash; returns the ids of the sandboxes.

        Args:
            run_id: The run's; None takes all whose process was on this machine and does not live any more.
            api_url: The server; None takes the variable E2B_API_URL.
            api_key: None takes the variable E2B_API_KEY.

        Raises:
            ConfigurationError: No server is named.
            RolloutError: The server did not answer, or did not kill one of them.
        """
        place = Place.of("any", api_url, api_key)
        if place.api_url is None:
            raise ConfigurationError("whose sandboxes? Give api_url='http://…' or set E2B_API_URL")
        check_process()
        return reap(Provider(place.api_url, place.api_key or "", place.data_url), run_id)

    def _called(self, tool_name: str, arguments: dict[str, Any]) -> StepResult:
        tool = self._tools.get(tool_name) if isinstance(tool_name, str) else None
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return _refused("unknown_tool", f"there is no tool {tool_name!r}; the tools are: {known}")
        problem = guarded(f"the schema of tool {tool_name!r}", ToolCrashError, tool.check, arguments)
        if problem is not None:
            return _refused("bad_arguments", problem)
        held, given = self._session.held, None
        try:
            given = guarded(tool_name, ToolCrashError, tool.handler, self, arguments)
        except ToolCrashError as error:
            self._session.judge(held, error, mistake=True)
        if isinstance(given, StepResult):
            return step_result(given, tool_name)
        return StepResult(process_observation(given), None)


def _let_go_later(session: SandboxSession) -> None:
    """Kill the sandbox of an environment that nobody holds any more: on a thread, since this may be a collection."""
    if session.held is not None:
        threading.Thread(target=session.let_go, name="tiltyard-kill", daemon=True).start()


def _refused(kind: str, text: str) -> StepResult:
    return StepResult(f"Error: {text}", None, info={ERROR: kind})
