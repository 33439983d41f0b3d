"""What is done in a sandbox, and whose fault it is when it cannot be done."""

from collections.abc import Callable
from typing import Any, NoReturn

from tiltyard._boundary import reason
from tiltyard.envs.agent.commands import run
from tiltyard.envs.agent.files import read_text, write_text
from tiltyard.envs.agent.held import HeldSandbox, metadata_of
from tiltyard.envs.agent.opening import open_sandbox, provider_of
from tiltyard.envs.agent.options import Place, SandboxOptions
from tiltyard.envs.agent.output import CommandResult
from tiltyard.envs.agent.sdk import Provider, SandboxCallError, State
from tiltyard.errors import EnvError, EpisodeOverError, LostSessionError, RolloutError, ToolError
from tiltyard.tools.text import clean


class SandboxSession:
    """The sandboxes of one environment, one after the other.

    Attributes:
        held: The sandbox that there is; None before the first and after a `let_go`.
    """

    def __init__(self, place: Place, options: SandboxOptions) -> None:
        self.held: HeldSandbox | None = None
        self._place = place
        self._options = options
        self._provider: tuple[Provider, str] | None = None

    def open(self, run_id: str | None, wanted: Callable[[], bool]) -> None:
        """Make a sandbox, in place of the one that there may be; see `open_sandbox`.

        Raises:
            RolloutError: None could be made.
            ConfigurationError: The server does not know the template, the key or this SDK.
        """
        self.let_go()
        if self._provider is None:
            self._provider = provider_of(self._place)
        metadata = metadata_of(run_id, self._options.metadata)
        self.held = open_sandbox(*self._provider, self._options, metadata, wanted)

    def set_up(self) -> str:
        """Run the setup commands; their output.

        Raises:
            RolloutError: One of them failed.
        """
        texts = []
        listed = self._options.setup_commands
        for number, command in enumerate(listed, 1):
            try:
                result = self.execute(command)
            except ToolError as error:
                raise EnvError(f"setup command {number} of {len(listed)}, {command!r}, cannot run: {error}") from error
            if result.exit_code != 0:
                raise EnvError(f"setup command {number} of {len(listed)} failed: {command!r}\n{result.text(2000)}")
            texts.append(result.text())
        return "\n".join(text for text in texts if text)

    def let_go(self) -> None:
        """Kill the sandbox, if any; a kill that fails is in the report, and the server's time-out ends it."""
        held, self.held = self.held, None
        if held is not None:
            held.release()

    def living(self) -> HeldSandbox:
        """The sandbox.

        Raises:
            EpisodeOverError: There is none.
        """
        if self.held is None or self.held.sandbox is None:
            raise EpisodeOverError("there is no sandbox; reset() makes one")
        return self.held

    def execute(self, command: Any, cwd: Any = None, timeout_s: Any = None) -> CommandResult:
        """Run a command; see `AgentEnv.execute`.

        Raises:
            ToolError: An argument has a form that cannot be used, or the sandbox does not take it.
            RolloutError: The sandbox or its server is gone.
        """
        if not isinstance(command, str) or not command.strip():
            raise ToolError(f"'command' must be a command for bash, got {command!r}")
        if cwd is not None and not isinstance(cwd, str):
            raise ToolError(f"'cwd' must be a directory, got {cwd!r}")
        if "\0" in command or "\0" in (cwd or ""):
            raise ToolError("a command cannot have a NUL character in it")
        limit_s = _limit(timeout_s, self._options.command_timeout_s)
        held = self.living()
        try:
            return run(held.provider, held.sandbox, clean(command), clean(cwd) if cwd else None, limit_s)
        except SandboxCallError as error:
            self.judge(held, error, mistake=held.provider.is_argument_error(error.__cause__))

    def write_file(self, path: str, content: str) -> int:
        """Write a file; returns its size in bytes.

        Raises:
            ToolError: The sandbox cannot write it.
            RolloutError: The sandbox or its server is gone.
        """
        held = self.living()
        try:
            return write_text(held.sandbox, path, content)
        except SandboxCallError as error:
            self.judge(held, error, mistake=True)

    def read_file(self, path: str) -> str:
        """Read a file; of a long one head and tail.

        Raises:
            ToolError: The sandbox cannot read it.
            RolloutError: The sandbox or its server is gone.
        """
        held = self.living()
        try:
            return read_text(held.sandbox, path)
        except SandboxCallError as error:
            self.judge(held, error, mistake=True)

    def judge(self, held: HeldSandbox | None, error: RolloutError, *, mistake: bool) -> NoReturn:
        """Say whose fault a failed call is: the control plane knows whether the sandbox lives.

        Raises:
            LostSessionError: It does not, or nobody can say.
            ToolError: It lives, and `mistake` says that the call could not be done.
            EnvError: It lives, and the call failed all the same.
        """
        if held is None or held is not self.held:
            raise LostSessionError(f"the sandbox was closed while it was in use; {error}") from error
        state, said = held.provider.state(held.sandbox_id)
        if state is State.GONE:
            held.gone = True
            raise LostSessionError(f"sandbox {held.sandbox_id} is gone ({said}); {error}") from error
        if state is State.UNKNOWN:
            raise LostSessionError(f"{held.provider.url} does not answer ({said}); {error}") from error
        if mistake:
            raise ToolError(reason(error.__cause__ or error).splitlines()[0]) from error
        raise EnvError(f"sandbox {held.sandbox_id} lives, but a call to it failed: {error}") from error


def _limit(asked: Any, most_s: float) -> float:
    """A time limit that the model may have given, cut to the environment's; 0 is never "no limit"."""
    if asked is None:
        return most_s
    if isinstance(asked, bool) or not isinstance(asked, int | float) or asked != asked:  # noqa: PLR0124  # NaN
        raise ToolError(f"'timeout' must be a number of seconds, got {asked!r}")
    return min(asked, most_s) if asked > 0 else most_s
