"""Training: `tiltyard train` and `demo`."""

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tiltyard.cli.options import FAILED, INTERRUPTED, add_no_install, add_set, quiet, ready, run_name
from tiltyard.errors import ConfigurationError

if TYPE_CHECKING:
    from tiltyard.cli.options import Commands
    from tiltyard.manifest import Manifest
    from tiltyard.train.run_folder import RunFolder

# What a command runs is imported by the command: `tiltyard --help` must not wait for torch.
# ruff: noqa: PLC0415


def add_train(commands: "Commands") -> None:
    """Add `train`."""
    train = commands.add_parser("train", help="train what a manifest names")
    train.add_argument("manifest", nargs="?", help="the manifest; with --resume it may be left out")
    place = train.add_mutually_exclusive_group()
    place.add_argument("--out", help="the run folder to make (default: runs/MANIFEST-TIME)")
    place.add_argument("--resume", metavar="RUN", help="the run folder of a run to go on with")
    add_set(train)
    add_no_install(train)
    train.set_defaults(run=_train)


def add_demo(commands: "Commands") -> None:
    """Add `demo`."""
    demo = commands.add_parser("demo", help="train a small model in a game, on this machine")
    demo.add_argument("--out", help="the run folder to make (default: runs/demo-TIME)")
    demo.add_argument("--seed", type=int, help="another seed")
    demo.add_argument("--steps", type=int, help="another number of steps")
    demo.set_defaults(run=_demo)


def _train(arguments: argparse.Namespace) -> int:
    from tiltyard.manifest import load_manifest, manifest_to_yaml
    from tiltyard.train.run_folder import RunFolder

    if arguments.resume:
        from tiltyard.manifest.resuming import refuse_episodes, resumed_manifest

        refuse_episodes(arguments.resume)
        manifest = resumed_manifest(arguments.resume, arguments.manifest, arguments.set)
        ready(manifest, arguments)
        return _run(manifest, lambda: RunFolder.resume(arguments.resume, manifest_to_yaml(manifest)))
    if arguments.manifest is None:
        raise ConfigurationError("give a manifest, or --resume RUN to go on with a run")
    manifest = load_manifest(arguments.manifest, arguments.set)
    ready(manifest, arguments)
    return _start(manifest, arguments.out or run_name(Path(arguments.manifest).stem))


def _demo(arguments: argparse.Namespace) -> int:
    from importlib.resources import as_file, files

    from tiltyard.manifest import load_manifest

    chosen = {"training.seed": arguments.seed, "training.steps": arguments.steps}
    with as_file(files("tiltyard.demo") / "boxes.yaml") as path:
        manifest = load_manifest(path, [f"{key}={value}" for key, value in chosen.items() if value is not None])
    return _start(manifest, arguments.out or run_name("demo"))


def _start(manifest: "Manifest", out: str) -> int:
    from tiltyard.manifest import manifest_to_yaml
    from tiltyard.train.run_folder import RunFolder

    return _run(manifest, lambda: RunFolder.create(out, manifest_to_yaml(manifest)))


def _run(manifest: "Manifest", open_folder: Callable[[], "RunFolder"]) -> int:
    from tiltyard.build import train_manifest
    from tiltyard.report.summary import learned_nothing, summary_text
    from tiltyard.report.terminal import terminal_observer
    from tiltyard.train.observer import SilentObserver
    from tiltyard.train.processes import joined
    from tiltyard.train.run_folder import RunFolder

    quiet()  # takes seconds, in which no folder must be left behind
    processes = joined()
    folder = RunFolder.shared(open_folder, processes)
    observer = terminal_observer() if folder.writes else SilentObserver()
    summary = train_manifest(manifest, folder, observer, processes=processes)
    if folder.writes:
        print(summary_text(summary))
    if summary["interrupted"]:
        print(f"go on with  tiltyard train --resume {shlex.quote(str(folder.path))}")
        return INTERRUPTED
    return FAILED if learned_nothing(summary) else 0
