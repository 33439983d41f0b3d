"""What several commands share: exit codes, options, and what is made ready before a run."""

import argparse
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiltyard.manifest import Manifest

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

# What a command runs is imported by the command: `tiltyard --help` must not wait for torch.
# ruff: noqa: PLC0415

FAILED, WRONG, INTERRUPTED = 1, 2, 130
"""Exit codes: a check found an error or a run came to nothing, the input cannot be used, Ctrl-C."""


def add_set(parser: argparse.ArgumentParser) -> None:
    """Add `--set`, as often as one likes."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change one value, such as training.steps=3"
    )


def add_no_install(parser: argparse.ArgumentParser) -> None:
    """Add `--no-install`, which `ready` reads."""
    parser.add_argument(
        "--no-install", action="store_true", help="refuse where environment.env_packages would be installed"
    )


def ready(manifest: "Manifest", arguments: argparse.Namespace) -> None:
    """Install what the environment's entrypoint needs, if the manifest names it and it is not there."""
    if not manifest.environment.env_packages:
        return
    from tiltyard.manifest.packages import ready_packages

    say = partial(print, file=sys.stderr, flush=True)
    ready_packages(manifest.environment, say, install=not arguments.no_install)


def quiet(served: bool = False) -> None:
    """Load the model library, unless the model is served elsewhere, and keep its progress bars out of ours."""
    if served:
        return
    from tiltyard._optional import require

    require("torch", "train")
    require("transformers.utils.logging", "train").disable_progress_bar()


def run_name(stem: str) -> str:
    """The folder of a run that was given none."""
    return f"runs/{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
