"""Actions and results in the form that a server's client gives them: plain dicts, or the classes of a package."""

import inspect
from collections.abc import Mapping
from typing import Any, Protocol

from tiltyard._boundary import guarded, reason
from tiltyard.envs.openenv.session import Session
from tiltyard.envs.openenv.wire import RawResult, refusal_text
from tiltyard.errors import ConfigurationError, EnvError, ToolError
from tiltyard.tools.text import fields


class Codec(Protocol):
    """Between the objects of a caller and the JSON of the wire."""

    def payload(self, action: Any) -> Mapping[str, Any]:
        """The data of a step."""
        ...

    def result(self, raw: RawResult) -> Any:
        """A result, with `observation`, `reward` and `done`."""
        ...

    def state(self, data: dict[str, Any]) -> Any:
        """What `state` says."""
        ...


class DictCodec:
    """Plain dicts both ways; an action may be a dataclass or a pydantic model too."""

    def payload(self, action: Any) -> Mapping[str, Any]:
        """The action's fields.

        Raises:
            ConfigurationError: It has none.
        """
        found = fields(action)
        if found is None:
            raise ConfigurationError(
                f"an action must be a dict, a dataclass or a pydantic model, got the {type(action).__name__} {action!r}"
            )
        return found

    def result(self, raw: RawResult) -> RawResult:
        """The result as it came."""
        return raw

    def state(self, data: dict[str, Any]) -> dict[str, Any]:
        """The state as it came."""
        return data


class TypedCodec:
    """The classes of an OpenEnv package, by the methods of its own client; that client opens no connection.

    Its silent reconnects, to an environment that was never reset, are thereby out of the way.
    """

    def __init__(self, client_cls: Any, base_url: str, client_kwargs: Mapping[str, Any]) -> None:
        """Make the package's client.

        Raises:
            ConfigurationError: The class is no client, or does not take the arguments.
            EnvError: It cannot be made.
        """
        self._name = client_cls.__name__
        missing = [name for name in ("_step_payload", "_parse_result", "_parse_state") if not hasattr(client_cls, name)]
        if missing:
            raise ConfigurationError(
                f"{self._name} is no OpenEnv client: it has no {', '.join(missing)}; "
                "give a subclass of openenv.core.EnvClient"
            )
        self._client = made(client_cls, {"base_url": base_url, **client_kwargs}, "client_kwargs")

    def payload(self, action: Any) -> Mapping[str, Any]:
        """The data of a step, as the package's client writes it.

        Raises:
            EnvError: That client failed.
        """
        return guarded(f"{self._name}._step_payload", EnvError, self._client._step_payload, action)

    def result(self, raw: RawResult) -> Any:
        """A `StepResult` of openenv with the package's observation.

        Raises:
            EnvError: That client failed.
        """
        data = {"observation": raw.observation, "reward": raw.reward, "done": raw.done}
        if raw.metadata:
            data["metadata"] = raw.metadata
        return guarded(f"{self._name}._parse_result", EnvError, self._client._parse_result, data)

    def state(self, data: dict[str, Any]) -> Any:
        """The package's state.

        Raises:
            EnvError: That client failed.
        """
        return guarded(f"{self._name}._parse_state", EnvError, self._client._parse_state, data)


class SessionClient:
    """A blocking client of one session, in the shape of openenv's `.sync()`, on the session that never reconnects."""

    def __init__(self, session: Session, codec: Codec) -> None:
        self.session = session
        self.codec = codec

    def reset(self, /, **arguments: Any) -> Any:
        """Begin an episode; see `Session.reset`."""
        return self.codec.result(self.session.reset(**arguments))

    def step(self, action: Any) -> Any:
        """Send an action; see `Session.step`."""
        return self.codec.result(self.session.step(self.codec.payload(action)))

    def state(self) -> Any:
        """Ask for the state; see `Session.state`."""
        return self.codec.state(self.session.state())

    def close(self) -> None:
        """Give the session back."""
        self.session.close()


def made(cls: type, arguments: Mapping[str, Any], what: str) -> Any:
    """An instance of a package's class.

    Raises:
        ConfigurationError: The class does not take the arguments; `what` names them.
        EnvError: Its own code failed.
    """
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        raise ConfigurationError(f"{what} do not fit {cls.__name__}: {error}") from error
    return guarded(f"{cls.__name__}()", EnvError, cls, **arguments)


def build_action(action_cls: Any, given: Mapping[str, Any]) -> Any:
    """An action of the package's class.

    Raises:
        ToolError: The model's arguments are not its fields.
    """
    try:
        return action_cls(**given)
    except (TypeError, ValueError) as error:  # pydantic's ValidationError is a ValueError
        found = getattr(error, "errors", None)
        what = refusal_text("", found()) if callable(found) else reason(error)
        raise ToolError(f"the arguments are not those of {action_cls.__name__}: {what}") from error
