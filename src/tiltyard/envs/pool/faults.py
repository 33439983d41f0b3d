"""What a worker answers, as bytes: a value, or an error as text, since not every exception can be rebuilt elsewhere."""

import pickle
import traceback
from typing import Any

from tiltyard import errors
from tiltyard._boundary import guarded, reason, shown
from tiltyard.errors import ConfigurationError, EnvError, TiltyardError, ToolError
from tiltyard.types import StepResult

VALUE, STEP, ERROR = range(3)
"""How an answer begins."""


class RemoteTraceback(Exception):  # noqa: N818  # it is the cause of an error, and never raised itself
    """Where an error was raised in its worker, as text, with the errors that led to it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def packed(value: Any, what: str) -> bytes:
    """A value as bytes; where it cannot be sent, the error that says so."""
    if type(value) is StepResult:  # nearly all of them: as its fields, which is several times faster
        said = (STEP, value.observation, value.reward, value.done, value.info, value.truncated)
    else:
        said = (VALUE, value)
    try:
        return guarded("sending what it gave", EnvError, pickle.dumps, said, pickle.HIGHEST_PROTOCOL)
    except TiltyardError as error:
        return packed_error(EnvError(f"{what}: {error}"), what)


def packed_error(error: BaseException, what: str) -> bytes:
    """An error as bytes: its kind, its message and its traceback, all of it text."""
    if isinstance(error, TiltyardError):
        # That of a class of the environment's own is the nearest of ours.
        kind = next(cls.__name__ for cls in type(error).__mro__ if getattr(errors, cls.__name__, None) is cls)
        message = str(error)
    else:
        kind, message = EnvError.__name__, f"{what} raised {reason(error)}"
    trace = "".join(traceback.format_exception(error))
    return pickle.dumps((ERROR, kind, message, trace), pickle.HIGHEST_PROTOCOL)


def unpacked(answer: bytes, where: str) -> Any:
    """The value in an answer, or the error in it; the error is returned, and its cause is the worker's traceback.

    Args:
        answer: What `packed` or `packed_error` made.
        where: Names the slot and the worker: the first words of the error's message, but of a `ToolError`, whose text
            is for the model.
    """
    try:
        said = guarded(f"{where}: reading its answer", EnvError, pickle.loads, answer)
    except TiltyardError as error:
        return error
    if said[0] == STEP:
        return StepResult(*said[1:])
    if said[0] == VALUE:
        return said[1]
    _, kind, message, trace = said
    error: TiltyardError = getattr(errors, kind)(message if kind == ToolError.__name__ else f"{where}: {message}")
    error.__cause__ = RemoteTraceback(trace)
    return error


def sendable(value: Any, what: str) -> bytes:
    """What is sent to a worker, as bytes.

    Raises:
        ConfigurationError: It cannot be pickled; says what, and what can be.
    """
    try:
        return guarded(f"pickling {what}", EnvError, pickle.dumps, value, pickle.HIGHEST_PROTOCOL)
    except TiltyardError as error:
        raise ConfigurationError(
            f"{what} cannot be sent to a worker: {error}. Functions and classes are sent by name, so they must stand "
            f"at the top of a module that the worker can import; got {shown(value)}"
        ) from error
