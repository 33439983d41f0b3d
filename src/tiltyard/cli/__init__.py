"""The command line: `tiltyard init`, `check`, `train`, `eval`, `report` and the others.

Each module here has commands of one kind: what they take, and what they do.
"""

import argparse
import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import TextIO

from tiltyard import __version__
from tiltyard.cli import playing, preparing, runs, serving, training
from tiltyard.cli.options import FAILED, INTERRUPTED, WRONG
from tiltyard.errors import TiltyardError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code of the process."""
    _show_all_characters()
    arguments = _parser().parse_args(argv)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return arguments.run(arguments)
    except TiltyardError as error:
        print(f"tiltyard: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print("tiltyard: interrupted", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as error:  # of an environment or a reward: its code must not pass for that of the command
        print(f"tiltyard: {_exit_text(error)}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # whoever read the output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tiltyard", description="Language models train in environments.")
    parser.add_argument("--version", action="version", version=f"tiltyard {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    preparing.add_preparing(commands)
    training.add_train(commands)
    playing.add_playing(commands)
    runs.add_of_runs(commands)
    serving.add_serving(commands)
    training.add_demo(commands)
    return parser


def _show_all_characters() -> None:
    """Have a stream show what it cannot as escapes: an environment may say anything, a log may be ASCII."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _exit_text(error: SystemExit) -> str:
    """Say who asked Python to exit, and that nothing here may."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "_sitebuiltins" not in frame.filename]
    return (
        f"{frames[-1].filename}, line {frames[-1].lineno}, asked Python to exit (SystemExit: {error.code}); what a "
        "command loads or calls must return, or raise an error"
    )


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show what a warning says, not where in our code it was said."""
    del category, filename, lineno, line
    print(f"warning: {message}", file=file or sys.stderr)
