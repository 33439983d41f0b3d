"""An environment behind a URL, acted on with tool calls."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from tiltyard._boundary import guarded
from tiltyard.envs.base import Env
from tiltyard.envs.observation import process_observation
from tiltyard.envs.openenv.address import shown
from tiltyard.envs.openenv.codec import DictCodec, SessionClient, TypedCodec, build_action
from tiltyard.envs.openenv.discovery import action_class, client_class, load_class
from tiltyard.envs.openenv.mcp import LIST_TOOLS, call_action, mcp_types, speaks_mcp, tool_schemas, tool_text
from tiltyard.envs.openenv.options import SessionOptions, session_options
from tiltyard.envs.openenv.refusal import refused_reset, refused_step
from tiltyard.envs.openenv.session import Session
from tiltyard.envs.openenv.wire import truncated
from tiltyard.envs.result import flag, scored, step_result
from tiltyard.errors import ActionRefusedError, ConfigurationError, EnvError, EpisodeOverError, ToolCrashError
from tiltyard.tools.schema import tool_name as name_of
from tiltyard.types import StepResult, ToolSchema

Handler = Callable[["OpenEnvClient", dict[str, Any]], "str | StepResult"]
ActionMapper = Callable[[str, dict[str, Any]], Any]

RUN_PYTHON: ToolSchema = {
    "type": "function",
    "function": {
        "name": "run_python",
        "description": "Run Python code and read what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The code to run."}},
            "required": ["code"],
        },
    },
}


class OpenEnvClient(Env):
    """One session on a running OpenEnv server, dialled by the first `reset`; making a client needs no server.

    After a time-out or a lost connection the session is dead: the episode fails, no step is sent twice or to another
    session, and the next `reset` opens a new one. One client is for one thread at a time; make one for each episode
    that runs at once, as many as you like: all sessions of a process share one background thread.

    Attributes:
        reset_kwargs: Sent with each reset, after the seed and the fields of the task's row; may be set.
        last_result: The server's last answer, as `execute` returns it; None before the first.
        client: A blocking client of the session: `reset`, `step`, `state`, `close`.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # the options of the contract, each by its name
        self,
        env_name: str | None = None,
        env_cls: Any = None,
        base_url: str | None = None,
        action_cls: Any = None,
        action_mapper: ActionMapper | None = None,
        tools: Sequence[ToolSchema] | None = None,
        reset_kwargs: Mapping[str, Any] | None = None,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float | None = 120.0,
        client_kwargs: Mapping[str, Any] | None = None,
        *,
        capacity_timeout_s: float = 30.0,
        token: str | None = None,
    ) -> None:
        """Set the client up; nothing is dialled.

        Args:
            env_name: An installed package, whose client and action classes are used.
            env_cls: The client class itself, `module:Class` or `module.Class`; with neither, actions and observations
                are plain dicts.
            base_url: Where the server is; None takes the variable OPENENV_BASE_URL.
            action_cls: The class of actions; None takes that of the client class.
            action_mapper: `(tool_name, arguments) -> action`, an action or a dict of its fields. None takes the
                arguments as the fields or, without a class of actions, sends `{"tool_name", "arguments"}`.
            tools: What the model may call; None is one `run_python(code)`, or the real tools of an MCP environment.
            reset_kwargs: Sent with each reset.
            connect_timeout_s: How long a server that does not answer is tried for.
            message_timeout_s: How long one answer may take, the environment's construction included.
            client_kwargs: Of the package's client class; `headers` and `max_message_size_mb` are those of the session.
            capacity_timeout_s: How long a full server is waited for.
            token: The bearer token that the server asks for; None takes the variable OPENENV_TOKEN.

        Raises:
            ConfigurationError: Two of these contradict each other, or a class cannot be found or is of another kind.
            EnvError: The package's client could not be made.
            MissingExtraError: The `openenv` extra is not installed.
        """
        if env_name is not None and env_cls is not None:
            raise ConfigurationError(f"give env_name or env_cls, not both; got {env_name!r} and {env_cls!r}")
        url = base_url or os.environ.get("OPENENV_BASE_URL")
        if not url:
            raise ConfigurationError("where is the server? Give base_url='http://…' or set OPENENV_BASE_URL")
        given = dict(client_kwargs or {})
        typed = client_class(env_name) if env_name is not None else load_class(env_cls, "env_cls")
        bounds = SessionOptions(connect_timeout_s, message_timeout_s, capacity_timeout_s, token=token)
        self._session = Session(url, session_options(bounds, given, typed=typed is not None))
        self._mcp = typed is not None and any(base.__name__ == "MCPClientBase" for base in typed.__mro__)
        self._ask_for_mcp = typed is None and tools is None and action_mapper is None and action_cls is None
        self._action_cls = load_class(action_cls, "action_cls")
        if self._action_cls is None and typed is not None and not self._mcp:
            self._action_cls = action_class(typed, env_name)
        codec = DictCodec() if typed is None else TypedCodec(typed, url, given)
        self.client = SessionClient(self._session, codec)
        self._map = None if action_mapper is None else checked_callable(action_mapper, "action_mapper")
        self._tools = [RUN_PYTHON] if tools is None else list(tools)
        self._refuse_ambiguous(self._tools)
        self._own_tools = tools is None
        self._local: dict[str, tuple[ToolSchema, Handler]] = {}
        self.reset_kwargs: dict[str, Any] = dict(reset_kwargs or {})
        self.last_result: Any = None
        self._earned: float | None = None
        self._over: str | None = "before the first reset()"
        self._executed: list[Any] | None = None

    @property
    def episode_reward(self) -> float | None:
        """What the episode has earned so far; None when nothing was scored."""
        return self._earned

    @property
    def base_url(self) -> str:
        """What is dialled."""
        return self._session.url

    def tools(self) -> list[ToolSchema]:
        """What the model may call: the server's tools, and those that are registered here, which shadow them."""
        served = [schema for schema in self._tools if name_of(schema) not in self._local]
        return [*served, *(schema for schema, _ in self._local.values())]

    def register_tool(self, schema: ToolSchema, handler: Handler) -> Self:
        """Add a tool that runs here and not on the server; it shadows a server tool of the same name.

        A handler that returns text, or what `execute` gave it, earns what the `execute` calls that it made earned, and
        ends the episode if one of them did; a `StepResult` says it itself.

        Raises:
            ConfigurationError: The schema has no name, or the handler cannot be called.
        """
        self._local[name_of(schema)] = (schema, checked_callable(handler, "handler"))
        return self

    def reset(self, trajectory: dict[str, Any] | None = None) -> StepResult:
        """Begin an episode, on a new session where there is no living one.

        The seed, the fields of the task's row and `reset_kwargs` are sent. Servers of openenv drop, without a word,
        what their environment's `reset` does not take; those of Tiltyard refuse it.

        Raises:
            RolloutError: The server cannot be reached or is full; or its environment failed.
            ConfigurationError: There is no OpenEnv server at this address, or it refused the arguments.
        """
        self._over, self._earned, self.last_result = "after a reset() that failed", None, None
        fresh = not self._session.is_open
        self._session.open()
        listed = fresh and self._learn_tools()
        try:
            parsed = self.client.reset(**{**reset_arguments(trajectory), **(self.reset_kwargs or {})})
        except ActionRefusedError as error:
            raise refused_reset(error, self._session, given="reset_kwargs or a field of the task's row") from error
        result = self._taken(parsed)
        if self._mcp and fresh and not listed and self._own_tools:
            self._tools = tool_schemas(self.client.step(self._payload(LIST_TOOLS)).observation)
        self._over = "after the end of the episode" if result.done else None
        return result

    def step(self, tool_name: str, arguments: dict[str, Any]) -> StepResult:
        """Run one tool call, here where it is registered here, else on the server.

        Raises:
            ToolError: The server refused the arguments; the episode goes on.
            RolloutError: The environment failed, or the session is gone; the episode is over.
            ConfigurationError: The server takes actions of another form altogether.
            EpisodeOverError: The episode is over, or has not begun.
        """
        if self._over is not None:
            raise EpisodeOverError(f"{tool_name!r} was called {self._over}; call reset() to begin an episode")
        local = self._local.get(tool_name)
        if local is not None:
            result = self._run_here(tool_name, local[1], arguments)
        else:
            try:
                parsed = self.client.step(self._action(tool_name, arguments))
            except ActionRefusedError as error:
                raise refused_step(error, self._session, tagged=self._tagged) from error
            result = self._taken(parsed)
        if result.done or result.truncated:
            self._over = "after the end of the episode"
        return result

    def execute(self, action: Any) -> Any:
        """Send an action and return the server's own result, with its typed fields; after the end of an episode too.

        What it earns is not added to the episode's reward, unless the handler of a registered tool made the call.

        Raises:
            RolloutError: The environment failed, refused the action, or the session is gone.
        """
        self.last_result = self.client.step(action)
        if self._executed is not None:
            self._executed.append(self.last_result)
        return self.last_result

    def close(self) -> None:
        """Give the session back; more than one call does no harm. From another thread it ends a call that hangs."""
        self._over = "after close()"
        self._session.close()

    @property
    def _tagged(self) -> bool:
        """Whether actions are the generic `{"tool_name", "arguments"}`."""
        return self._map is None and self._action_cls is None and not self._mcp

    def _action(self, tool_name: str, arguments: dict[str, Any]) -> Any:
        if self._map is not None:
            action = guarded("action_mapper", EnvError, self._map, tool_name, arguments)
        elif self._mcp:
            return self._payload(call_action(tool_name, arguments))
        elif self._action_cls is None:
            return {"tool_name": tool_name, "arguments": arguments}
        else:
            action = arguments
        if self._action_cls is not None and isinstance(action, Mapping):
            return build_action(self._action_cls, action)
        return action

    def _payload(self, action: Mapping[str, Any]) -> Any:
        """An action of an MCP environment, for the client class where there is one."""
        if isinstance(self.client.codec, DictCodec):
            return action
        kinds = {"list_tools": mcp_types().ListToolsAction, "call_tool": mcp_types().CallToolAction}
        return kinds[action["type"]](**action)

    def _learn_tools(self) -> bool:
        """Find out, on a new session and before it is reset, whether the server has tools, and which."""
        if self._ask_for_mcp:
            said = self._session.facts.get("actions")
            self._mcp = said == "tools" if said else speaks_mcp(self._session.url, self._session.options.token)
        if not self._mcp or not self._own_tools:
            return False
        try:
            self._tools = tool_schemas(self.client.step(self._payload(LIST_TOOLS)).observation)
        except EnvError:  # this one has no tools before its first reset
            return False
        return True

    def _taken(self, parsed: Any) -> StepResult:
        """A result of the server as ours, added to the episode."""
        self.last_result = parsed
        where = f"the environment at {shown(self._session.url)}"
        reward = scored(parsed.reward, where)
        if reward is not None:
            self._earned = (self._earned or 0.0) + reward
        metadata = getattr(parsed, "metadata", None) or {}
        info = {"raw_result": parsed, "episode_reward": self._earned}
        return StepResult(self._text(parsed), reward, flag(parsed.done, "done", where), info, truncated(metadata))

    def _text(self, parsed: Any) -> str:
        """What the model sees of a result of the server."""
        return tool_text(parsed.observation) if self._mcp else process_observation(parsed.observation)

    def _run_here(self, name: str, handler: Handler, arguments: dict[str, Any]) -> StepResult:
        self._executed = executed = []
        try:
            given: Any = guarded(name, ToolCrashError, handler, self, arguments)
        finally:
            self._executed = None
        if not isinstance(given, StepResult):
            rewards = [scored(parsed.reward, name) for parsed in executed]
            known = [reward for reward in rewards if reward is not None]
            earned = sum(known, 0.0) if known or not rewards else None
            text = self._text(given) if any(given is parsed for parsed in executed) else process_observation(given)
            given = StepResult(text, earned, any(parsed.done for parsed in executed))
        result = step_result(given, name)
        if result.reward is not None:
            self._earned = (self._earned or 0.0) + result.reward
        result.info = {"raw_result": self.last_result, **result.info, "episode_reward": self._earned}
        return result

    def _refuse_ambiguous(self, tools: Sequence[ToolSchema]) -> None:
        names = ", ".join([name_of(schema) for schema in tools])
        if len(tools) > 1 and self._map is None and self._action_cls is not None:
            raise ConfigurationError(
                f"an action of {self._action_cls.__name__} does not say which of the tools {names} was called; "
                "give action_mapper=lambda tool_name, arguments: …"
            )


def checked_callable(given: Any, what: str) -> Any:
    """What the caller gave to be called.

    Raises:
        ConfigurationError: It cannot be called; `what` names the argument.
    """
    if not callable(given):
        raise ConfigurationError(f"{what} must be a function, got {given!r}")
    return given


def reset_arguments(trajectory: Mapping[str, Any] | None) -> dict[str, Any]:
    """What of a task is sent with a reset: all that says something, but for the messages."""
    given = {name: value for name, value in (trajectory or {}).items() if name != "messages" and value is not None}
    if given.get("evaluation") is False:
        del given["evaluation"]
    return given
