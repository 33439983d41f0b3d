"""After a run, or beside it: `tiltyard export`, `report` and `watch`."""

import argparse
import sys
from typing import TYPE_CHECKING

from tiltyard.cli.options import quiet
from tiltyard.errors import ConfigurationError

if TYPE_CHECKING:
    from tiltyard.cli.options import Commands

# What a command runs is imported by the command: `tiltyard --help` must not wait for torch.
# ruff: noqa: PLC0415

DAY_S = 86_400


def add_of_runs(commands: "Commands") -> None:
    """Add `export`, `report` and `watch`."""
    export = commands.add_parser("export", help="write what a run learned as a folder that other programs load")
    export.add_argument("folder", metavar="RUN", help="the run folder")
    export.add_argument("out", metavar="OUT", help="the folder to make")
    export.add_argument("--checkpoint", default="last", metavar="WHICH", help="last, best or a step (default: last)")
    export.add_argument("--merge", action="store_true", help="put a trained adapter into the model's weights")
    export.set_defaults(run=_export)

    report = commands.add_parser("report", help="write the page of a run, or of two side by side: one HTML file")
    report.add_argument("folder", metavar="RUN", help="the folder of a run, an evaluation or a rollout")
    report.add_argument("other", metavar="OTHER", nargs="?", help="a second one to compare it with")
    report.add_argument("--out", metavar="FILE", help="the file to write (default: report.html in the folder of RUN)")
    report.set_defaults(run=_report)

    watch = commands.add_parser("watch", help="show a run as it goes: progress, curves, last steps and episodes")
    watch.add_argument("folder", metavar="RUN", help="the folder of a run, an evaluation or a rollout")
    watch.add_argument("--every", type=float, default=1.0, metavar="S", help="seconds between two looks (default: 1)")
    watch.set_defaults(run=_watch)


def _export(arguments: argparse.Namespace) -> int:
    from tiltyard.export import export_run

    quiet()
    print(export_run(arguments.folder, arguments.out, checkpoint=arguments.checkpoint, merge=arguments.merge))
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from tiltyard.report.page import write_report

    print(write_report(arguments.folder, arguments.other, arguments.out))
    return 0


def _watch(arguments: argparse.Namespace) -> int:
    from tiltyard.report.watch import watch

    if not 0 < arguments.every <= DAY_S:
        raise ConfigurationError(f"--every must be above 0 seconds and at most {DAY_S}, got {arguments.every}")
    watch(arguments.folder, sys.stdout, every_s=arguments.every)
    return 0
