"""A text environment behind a URL."""

from collections.abc import Mapping, Sequence
from typing import Any

from tiltyard.envs.openenv.address import shown
from tiltyard.envs.openenv.mcp import LIST_TOOLS, call_action, tool_schemas, tool_text
from tiltyard.envs.openenv.options import SessionOptions, session_options
from tiltyard.envs.openenv.refusal import refused_reset, refused_text
from tiltyard.envs.openenv.session import Session
from tiltyard.envs.openenv.wire import MESSAGE, OWN, RawResult, truncated
from tiltyard.envs.result import flag, scored
from tiltyard.errors import ActionRefusedError, ConfigurationError, EpisodeOverError, ToolError
from tiltyard.types import Message, ToolSchema


class RemoteEnvClient:
    """One session on an OpenEnv server, in the shape of a text environment; making a client needs no server.

    The first `reset` dials, and so does the first question about the environment (`tools`, `dataset_size`, …), which
    servers of Tiltyard answer. After a time-out or a lost connection the session is dead, and the next `reset` opens
    a new one; a step is never sent twice.
    """

    def __init__(
        self,
        base_url: str,
        *,
        action_field: str = MESSAGE,
        mcp_tool: str | None = None,
        request_timeout_s: float = 300.0,
        connect_timeout_s: float = 10.0,
        capacity_timeout_s: float = 30.0,
        token: str | None = None,
    ) -> None:
        """Set the client up; nothing is dialled.

        Args:
            base_url: Where the server is.
            action_field: The field of an action that the model's text goes into; of the arguments, with `mcp_tool`.
            mcp_tool: The tool of an MCP environment that each text is given to.
            request_timeout_s: How long one answer may take, the environment's construction included; 0 sets no bound.
            connect_timeout_s: How long a server that does not answer is tried for.
            capacity_timeout_s: How long a full server is waited for.
            token: The bearer token that the server asks for; None takes the variable OPENENV_TOKEN.

        Raises:
            ConfigurationError: The URL, a bound or a name cannot be.
        """
        if not action_field or not isinstance(action_field, str):
            raise ConfigurationError(f"action_field must be the name of a field, got {action_field!r}")
        wait_s = request_timeout_s or None
        if wait_s is not None and not (isinstance(wait_s, int | float) and wait_s > 0):
            raise ConfigurationError(f"request_timeout_s must be a number >= 0, got {wait_s!r}; 0 sets no bound")
        bounds = SessionOptions(connect_timeout_s, wait_s, capacity_timeout_s, token=token)
        self._session = Session(base_url, session_options(bounds, {}, typed=False))
        self._field = action_field
        self._mcp_tool = mcp_tool
        self._argument: str | None = None
        self._facts: Mapping[str, Any] = {}
        self._over: str | None = "before the first reset()"
        self._closed = False

    @property
    def url(self) -> str:
        """What is dialled."""
        return self._session.url

    @property
    def tools(self) -> Sequence[ToolSchema]:
        """The tool schemas that the environment shows to the model; empty when it has none."""
        return self._said("tools") or ()

    @property
    def dataset_size(self) -> int | None:
        """How many rows the environment has; None when it is not made of rows, or does not say."""
        return self._said("dataset_size")

    @property
    def evaluation_size(self) -> int | None:
        """How many rows the held-out split has; None when the environment does not say."""
        return self._said("evaluation_size")

    @property
    def system_prompt(self) -> str | None:
        """What leads the conversation as the system message; None when there is nothing."""
        return self._said("system_prompt")

    @property
    def examples(self) -> Sequence[Message]:
        """What shows an episode before the first observation; empty when the environment has no examples."""
        return self._said("examples") or ()

    @property
    def max_turns(self) -> int | None:
        """The environment's own turn budget; None when it does not say."""
        return self._said("max_turns")

    def reset(
        self, seed: int | None = None, *, row_index: int | None = None, evaluation: bool | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, on a new session where there is no living one: `(payload, info)`.

        Args:
            seed: Sent on.
            row_index: The data row; sent on. A server that is not of Tiltyard may drop it without a word.
            evaluation: True serves the held-out split; sent on.

        Raises:
            ConfigurationError: There is no OpenEnv server at this address; or the environment is known not to take a
                row, or has no tool `mcp_tool`.
            EpisodeOverError: The client is closed.
            RolloutError: The server cannot be reached or is full; or its environment failed.
        """
        self._over = "after a reset() that failed"
        self._open()
        given = {"seed": seed, "row_index": row_index, "evaluation": evaluation or None}
        arguments = {name: value for name, value in given.items() if value is not None}
        options = self._session.facts.get("reset_options")
        if row_index is not None and options is not None and "row_index" not in options:
            raise ConfigurationError(
                f"row_index={row_index!r} is given, but the reset of the environment at {shown(self.url)} takes none"
            )
        try:
            raw = self._session.reset(**arguments)
        except ActionRefusedError as error:
            raise refused_reset(error, self._session, given=f"{arguments!r}") from error
        self._facts = {**self._session.facts, **_own(raw)}
        self._over = "after the end of the episode" if flag(raw.done, "done", self._where) else None
        return self._payload(raw), _info(raw)

    def step(self, action: str) -> tuple[Any, float | None, bool, bool, dict[str, Any]]:
        """Send one text: `(payload, reward, terminated, truncated, info)`.

        Raises:
            ConfigurationError: The server takes no text under `action_field`.
            EpisodeOverError: The episode is over, or has not begun.
            RolloutError: The environment failed, or the session is gone; the episode is over.
            ToolError: The server refused what the text says; the episode goes on.
        """
        if self._over is not None:
            raise EpisodeOverError(f"step() {self._over}; call reset() to start an episode")
        fields = {self._argument or self._field: action}
        self._over = "after a step() that failed"
        try:
            raw = self._session.step(call_action(self._mcp_tool, fields) if self._mcp_tool else fields)
        except ActionRefusedError as error:
            self._over = None
            raise refused_text(error, self._session, self._field) from error
        except ToolError:
            self._over = None
            raise
        reward, done, cut = (
            scored(raw.reward, self._where),
            flag(raw.done, "done", self._where),
            truncated(raw.metadata),
        )
        self._over = "after the end of the episode" if done or cut else None
        return self._payload(raw), reward, done, cut, _info(raw)

    def close(self) -> None:
        """Give the session back; the second call does nothing. From another thread it ends a step that hangs."""
        self._closed, self._over = True, "after close()"
        self._session.close()

    @property
    def _where(self) -> str:
        return f"the environment at {shown(self.url)}"

    def _said(self, name: str) -> Any:
        if not self._session.facts and not self._closed:
            self._open()
        return self._facts.get(name, self._session.facts.get(name))

    def _open(self) -> None:
        if self._closed:
            raise EpisodeOverError("reset() after close(): make a new client")
        self._session.open()
        if self._mcp_tool is not None and self._argument is None:
            self._argument = self._argument_of(self._mcp_tool)

    def _argument_of(self, tool: str) -> str:
        """The argument of the tool that takes the text: `action_field`, or the only one that it has."""
        known = {
            schema["function"]["name"]: schema for schema in tool_schemas(self._session.step(LIST_TOOLS).observation)
        }
        if tool not in known:
            raise ConfigurationError(
                f"mcp_tool={tool!r}: {self._where} has no such tool; it has {', '.join(sorted(known)) or 'none'}"
            )
        parameters = known[tool]["function"]["parameters"]
        names = sorted(parameters.get("properties") or ())
        required = parameters.get("required") or names
        if self._field in names:
            return self._field
        if len(required) == 1:
            return required[0]
        raise ConfigurationError(
            f"mcp_tool={tool!r} takes the arguments {', '.join(map(repr, names)) or 'none'}; "
            "set action_field to the one that takes the model's text"
        )

    def _payload(self, raw: RawResult) -> Any:
        if self._mcp_tool is not None:
            return tool_text(raw.observation)
        if _own(raw).get("plain") is True and isinstance(raw.observation, Mapping):
            return raw.observation.get(MESSAGE)
        return raw.observation


def _own(raw: RawResult) -> Mapping[str, Any]:
    own = raw.metadata.get(OWN)
    return own if isinstance(own, Mapping) else {}


def _info(raw: RawResult) -> dict[str, Any]:
    return {name: value for name, value in raw.metadata.items() if name != OWN}
