"""Episodes that are played and not learned from: `tiltyard eval` and `rollout`."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from tiltyard.cli.options import FAILED, INTERRUPTED, add_no_install, add_set, quiet, ready, run_name
from tiltyard.errors import ConfigurationError

if TYPE_CHECKING:
    from tiltyard.cli.options import Commands

# What a command runs is imported by the command: `tiltyard --help` must not wait for torch.
# ruff: noqa: PLC0415


def add_playing(commands: "Commands") -> None:
    """Add `eval` and `rollout`."""
    evaluate = commands.add_parser("eval", help="play the held-out tasks of a manifest: pass@k, avg@k, intervals")
    add_play(evaluate, "-k", "eval")
    evaluate.add_argument("--checkpoint", help="a run folder or one of its checkpoints (default: the untrained model)")
    evaluate.set_defaults(run=_play, split="held-out")

    rollout = commands.add_parser("rollout", help="play episodes of a manifest, with its model or a served one")
    add_play(rollout, "-n", "rollout")
    rollout.add_argument("--split", choices=("train", "held-out"), help="whose tasks to play (default: train)")
    rollout.set_defaults(run=_play, checkpoint=None)


def add_play(parser: argparse.ArgumentParser, samples: str, command: str) -> None:
    """Add what `eval` and `rollout` share; None means that it was not given."""
    parser.add_argument("manifest", nargs="?", help="the manifest; with --resume it may be left out")
    parser.add_argument(samples, "--samples", type=int, metavar="N", help="episodes of each task (default: 1)")
    parser.add_argument("--tasks", type=int, metavar="N", help="how many tasks (default: training.eval.tasks, or 64)")
    parser.add_argument("--api", metavar="URL", help="play with a served model, through an OpenAI-compatible API")
    parser.add_argument("--model", metavar="NAME", help="its name on the server; its key is $OPENAI_API_KEY")
    parser.add_argument("--token-ids", choices=("vllm", "llama.cpp"), help="ask this kind of server for token ids")
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds for one answer, with retries (600)")
    parser.add_argument("--concurrency", type=int, metavar="N", help="episodes that are played at one time")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--out", help=f"the folder to make (default: runs/MANIFEST-{command}-TIME)")
    place.add_argument("--resume", metavar="DIR", help="play what is missing or failed in this folder")
    parser.set_defaults(command=command)
    add_set(parser)
    add_no_install(parser)


def _play(arguments: argparse.Namespace) -> int:
    from tiltyard.manifest import load_manifest, manifest_to_yaml
    from tiltyard.manifest.resuming import resumed_manifest
    from tiltyard.play import new_request, play_manifest, resumed_request
    from tiltyard.report.playing import episode_observer, episodes_text
    from tiltyard.train.run_folder import RunFolder

    names = ("split", "tasks", "samples", "checkpoint", "concurrency", "model", "token_ids")
    asked = {**{name: getattr(arguments, name) for name in names}, "url": arguments.api, "timeout_s": arguments.timeout}
    given = {name: value for name, value in asked.items() if value is not None}
    if arguments.resume:
        manifest = resumed_manifest(arguments.resume, arguments.manifest, arguments.set)
        ready(manifest, arguments)
        request = resumed_request(arguments.resume, given)
        quiet(request.server is not None)
        folder = RunFolder.resume(arguments.resume, manifest_to_yaml(manifest))
    else:
        if arguments.manifest is None:
            raise ConfigurationError("give a manifest, or --resume DIR to go on in a folder")
        manifest = load_manifest(arguments.manifest, arguments.set)
        ready(manifest, arguments)
        request = new_request({"split": "train", **given})
        quiet(request.server is not None)
        name = run_name(f"{Path(arguments.manifest).stem}-{arguments.command}")
        folder = RunFolder.create(arguments.out or name, manifest_to_yaml(manifest))
    summary = play_manifest(manifest, folder, request, episode_observer())
    print(episodes_text(summary))
    if summary["failed"] or summary["missing"]:
        print(f"go on with  tiltyard {arguments.command} --resume {shlex.quote(str(folder.path))}")
    if summary["interrupted"]:
        return INTERRUPTED
    return FAILED if summary["failed"] == summary["episodes"] else 0
