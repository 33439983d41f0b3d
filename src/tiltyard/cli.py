"""The command line: `tiltyard init`, `check`, `train`, `eval`, `report` and the others."""

import argparse
import os
import shlex
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tiltyard import __version__
from tiltyard.errors import ConfigurationError, TiltyardError

if TYPE_CHECKING:
    from tiltyard.manifest import Manifest
    from tiltyard.train.run_folder import RunFolder

# Everything else is imported by the command that needs it: `tiltyard --help` must not wait for torch.
# ruff: noqa: PLC0415

FAILED, WRONG, INTERRUPTED = 1, 2, 130
"""Exit codes: a check found an error or a run came to nothing, the input cannot be used, Ctrl-C."""

HIGHEST_PORT = 65535

SANDBOX_LIMITS = {
    "memory_mib": "memory in MiB",
    "processes": "processes and threads",
    "cpus": "share of the CPUs, such as 0.5",
    "disk_mib": "disk in MiB",
    "open_files": "open files of a process",
}

MANIFEST_ENDINGS = (".yaml", ".yml", ".toml")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code of the process."""
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

    _add_before_a_run(commands)
    train = commands.add_parser("train", help="train what a manifest names")
    train.add_argument("manifest", nargs="?", help="the manifest; with --resume it may be left out")
    place = train.add_mutually_exclusive_group()
    place.add_argument("--out", help="the run folder to make (default: runs/MANIFEST-TIME)")
    place.add_argument("--resume", metavar="RUN", help="the run folder of a run to go on with")
    _add_set(train)
    _add_no_install(train)
    train.set_defaults(run=_train)

    evaluate = commands.add_parser("eval", help="play the held-out tasks of a manifest: pass@k, avg@k, intervals")
    _add_play(evaluate, "-k", "eval")
    evaluate.add_argument("--checkpoint", help="a run folder or one of its checkpoints (default: the untrained model)")
    evaluate.set_defaults(run=_play, split="held-out")

    rollout = commands.add_parser("rollout", help="play episodes of a manifest, with its model or a served one")
    _add_play(rollout, "-n", "rollout")
    rollout.add_argument("--split", choices=("train", "held-out"), help="whose tasks to play (default: train)")
    rollout.set_defaults(run=_play, checkpoint=None)

    _add_of_runs(commands)

    serve = commands.add_parser("serve", help="put an environment behind a URL, over the OpenEnv protocol")
    serve.add_argument("spec", help="an entrypoint: module:attr or path.py:attr")
    serve.add_argument(
        "--env-config", default="{}", metavar="YAML", help="its keyword arguments, such as '{target: 7}'"
    )
    serve.add_argument("--host", default="127.0.0.1", help="what to bind to; others than this machine need a token")
    serve.add_argument("--port", type=_port, default=8000, help="the port; 0 takes a free one (default: 8000)")
    serve.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default: 1)")
    serve.add_argument("--max-concurrent-envs", type=int, metavar="N", help="sessions in each of them (default: 64)")
    serve.add_argument("--token-env", metavar="NAME", help="the variable that holds the token that clients must send")
    serve.add_argument("--timeout", type=float, default=300.0, metavar="S", help="seconds for one call (default: 300)")
    serve.set_defaults(run=_serve)

    _add_sandbox(commands.add_parser("sandbox", help="serve sandboxes of this machine, over the API of E2B's SDK"))

    reap = commands.add_parser("reap", help="kill the sandboxes that a crashed run left on a server")
    reap.add_argument("run_id", nargs="?", help="the run's name (default: all whose process on this machine is dead)")
    reap.add_argument("--api-url", metavar="URL", help="the server (default: $E2B_API_URL)")
    reap.add_argument("--key", help="its API key (default: $E2B_API_KEY)")
    reap.set_defaults(run=_reap)

    demo = commands.add_parser("demo", help="train a small model in a game, on this machine")
    demo.add_argument("--out", help="the run folder to make (default: runs/demo-TIME)")
    demo.add_argument("--seed", type=int, help="another seed")
    demo.add_argument("--steps", type=int, help="another number of steps")
    demo.set_defaults(run=_demo)
    return parser


def _exit_text(error: SystemExit) -> str:
    """Say who asked Python to exit, and that nothing here may."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "_sitebuiltins" not in frame.filename]
    return (
        f"{frames[-1].filename}, line {frames[-1].lineno}, asked Python to exit (SystemExit: {error.code}); what a "
        "command loads or calls must return, or raise an error"
    )


def _port(text: str) -> int:
    """The number of a TCP port, 0 for a free one."""
    if not (text.isdecimal() and int(text) <= HIGHEST_PORT):
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to {HIGHEST_PORT}, got {text!r}")
    return int(text)


def _add_sandbox(sandbox: argparse.ArgumentParser) -> None:
    sandbox.add_argument("--host", default="127.0.0.1", help="what to bind to (default: this machine alone)")
    sandbox.add_argument("--port", type=_port, default=8890, help="the port; 0 takes a free one (default: 8890)")
    sandbox.add_argument("--key", help="what clients must send as their API key (default: a random one)")
    sandbox.add_argument("--template", action="append", default=[], metavar="NAME", help="another name for `base`")
    sandbox.add_argument("--templates", metavar="FILE", help="a YAML file of templates: docs/sandboxes.md")
    sandbox.add_argument("--warm", type=int, default=2, metavar="N", help="how many are kept ready (default: 2)")
    sandbox.add_argument("--max-sandboxes", type=int, default=256, metavar="N", help="how many at a time (256)")
    for name, what in SANDBOX_LIMITS.items():
        kind = float if name == "cpus" else int
        sandbox.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=f"each sandbox's {what}")
    sandbox.add_argument("--network", action="store_true", help="sandboxes reach the network of this machine")
    sandbox.add_argument("--unsafe", action="store_true", help="run without isolation where this machine has none")
    sandbox.set_defaults(run=_sandbox)


def _add_of_runs(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands that take a run folder."""
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


def _add_before_a_run(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    init = commands.add_parser("init", help="write an environment that works, a manifest and a test into a new folder")
    init.add_argument("folder", metavar="NAME", help="the folder to make")
    init.add_argument("--tools", action="store_true", help="an environment of tool calls; otherwise one of text")
    init.set_defaults(run=_init)

    check = commands.add_parser("check", help="try out an environment, or a manifest and its environment")
    check.add_argument("what", help="a manifest, a folder of `init`, or an entrypoint: module:attr or path.py:attr")
    _add_set(check)
    _add_no_install(check)
    check.set_defaults(run=_check)

    schema = commands.add_parser("schema", help="print the JSON Schema of a manifest, for editors")
    schema.add_argument("--out", metavar="FILE", help="the file to write, in place of standard output")
    schema.set_defaults(run=_schema)


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change one value, such as training.steps=3"
    )


def _add_no_install(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-install", action="store_true", help="refuse where environment.env_packages would be installed"
    )


def _add_play(parser: argparse.ArgumentParser, samples: str, command: str) -> None:
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
    _add_set(parser)
    _add_no_install(parser)


def _train(arguments: argparse.Namespace) -> int:
    from tiltyard.manifest import load_manifest, manifest_to_yaml
    from tiltyard.train.run_folder import RunFolder

    if arguments.resume:
        from tiltyard.manifest.resuming import refuse_episodes, resumed_manifest

        refuse_episodes(arguments.resume)
        manifest = resumed_manifest(arguments.resume, arguments.manifest, arguments.set)
        _ready(manifest, arguments)
        return _run(manifest, lambda: RunFolder.resume(arguments.resume, manifest_to_yaml(manifest)))
    if arguments.manifest is None:
        raise ConfigurationError("give a manifest, or --resume RUN to go on with a run")
    manifest = load_manifest(arguments.manifest, arguments.set)
    _ready(manifest, arguments)
    return _start(manifest, arguments.out or _run_name(Path(arguments.manifest).stem))


def _reap(arguments: argparse.Namespace) -> int:
    from tiltyard.envs.agent.env import AgentEnv

    killed = AgentEnv.reap(arguments.run_id, arguments.api_url, arguments.key)
    for name in killed:
        print(f"killed sandbox {name}")
    print(f"{len(killed)} sandboxes were left")
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    from importlib.resources import as_file, files

    from tiltyard.manifest import load_manifest

    chosen = {"training.seed": arguments.seed, "training.steps": arguments.steps}
    with as_file(files("tiltyard.demo") / "boxes.yaml") as path:
        manifest = load_manifest(path, [f"{key}={value}" for key, value in chosen.items() if value is not None])
    return _start(manifest, arguments.out or _run_name("demo"))


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
        _ready(manifest, arguments)
        request = resumed_request(arguments.resume, given)
        _quiet(request.server is not None)
        folder = RunFolder.resume(arguments.resume, manifest_to_yaml(manifest))
    else:
        if arguments.manifest is None:
            raise ConfigurationError("give a manifest, or --resume DIR to go on in a folder")
        manifest = load_manifest(arguments.manifest, arguments.set)
        _ready(manifest, arguments)
        request = new_request({"split": "train", **given})
        _quiet(request.server is not None)
        name = _run_name(f"{Path(arguments.manifest).stem}-{arguments.command}")
        folder = RunFolder.create(arguments.out or name, manifest_to_yaml(manifest))
    summary = play_manifest(manifest, folder, request, episode_observer())
    print(episodes_text(summary))
    if summary["failed"] or summary["missing"]:
        print(f"go on with  tiltyard {arguments.command} --resume {shlex.quote(str(folder.path))}")
    if summary["interrupted"]:
        return INTERRUPTED
    return FAILED if summary["failed"] == summary["episodes"] else 0


def _export(arguments: argparse.Namespace) -> int:
    from tiltyard.export import export_run

    _quiet()
    print(export_run(arguments.folder, arguments.out, checkpoint=arguments.checkpoint, merge=arguments.merge))
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from tiltyard.report.page import write_report

    print(write_report(arguments.folder, arguments.other, arguments.out))
    return 0


def _watch(arguments: argparse.Namespace) -> int:
    from tiltyard.report.watch import watch

    if arguments.every <= 0:
        raise ConfigurationError(f"--every must be above 0 seconds, got {arguments.every}")
    watch(arguments.folder, sys.stdout, every_s=arguments.every)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from tiltyard.checking import check_entrypoint, check_manifest
    from tiltyard.manifest import load_manifest
    from tiltyard.scaffold import manifest_in

    path = Path(arguments.what)
    if path.is_dir():
        path = manifest_in(path)
    if path.suffix not in MANIFEST_ENDINGS:
        if arguments.set:
            raise ConfigurationError(f"--set changes a manifest, and {arguments.what!r} is an entrypoint")
        found = check_entrypoint(arguments.what)
        print(found)
        return 0 if found.ok else FAILED
    manifest = load_manifest(path, arguments.set)
    if manifest.environment.env_type == "dataset":
        from tiltyard.build_dataset import check_dataset_manifest

        print(f"{path}: the manifest is sound")
        print(check_dataset_manifest(manifest))
        return 0
    _ready(manifest, arguments)
    found = check_manifest(manifest)
    print(f"{path}: the manifest is sound; {found.facts.max_turns} turns, {found.facts.rows or 'no'} rows")
    print(found)
    print(f"{path}: {'ready to train' if found.ok else 'not ready'}")
    return 0 if found.ok else FAILED


def _init(arguments: argparse.Namespace) -> int:
    from tiltyard.scaffold import write_scaffold

    print(write_scaffold(arguments.folder, tools=arguments.tools))
    return 0


def _schema(arguments: argparse.Namespace) -> int:
    from tiltyard.manifest.json_schema import schema_text

    text = schema_text()
    if arguments.out is None:
        print(text, end="")
        return 0
    try:
        Path(arguments.out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{arguments.out} cannot be written: {error.strerror}") from error
    print(f"{arguments.out}: name it in a manifest's first line: # yaml-language-server: $schema={arguments.out}")
    return 0


def _ready(manifest: "Manifest", arguments: argparse.Namespace) -> None:
    """Install what the environment's entrypoint needs, if the manifest names it and it is not there."""
    if not manifest.environment.env_packages:
        return
    from tiltyard.manifest.packages import ready_packages

    say = partial(print, file=sys.stderr, flush=True)
    ready_packages(manifest.environment, say, install=not arguments.no_install)


def _serve(arguments: argparse.Namespace) -> int:
    from tiltyard.manifest.yaml_text import read_yaml
    from tiltyard.serving.command import serve_until_stopped

    given = read_yaml(arguments.env_config)
    if given.problems or not isinstance(given.value, dict):
        why = f" ({given.problems[0]})" if given.problems else ""
        raise ConfigurationError(
            f"--env-config is a mapping such as '{{target: 7}}', got {arguments.env_config!r}{why}"
        )
    token = None
    if arguments.token_env is not None:
        token = os.environ.get(arguments.token_env)
        if token is None:
            raise ConfigurationError(f"--token-env names the variable {arguments.token_env!r}, which is not set")
    serve_until_stopped(
        arguments.spec,
        given.value,
        partial(print, flush=True),
        host=arguments.host,
        port=arguments.port,
        workers=arguments.workers,
        max_concurrent_envs=arguments.max_concurrent_envs,
        token=token,
        call_timeout_s=arguments.timeout,
    )
    return 0


def _sandbox(arguments: argparse.Namespace) -> int:
    from tiltyard.manifest.yaml_text import read_yaml
    from tiltyard.sandbox.command import serve_until_stopped
    from tiltyard.sandbox.server import LocalSandboxServer
    from tiltyard.sandbox.template_file import command_templates

    named: dict[str, Any] = dict.fromkeys(arguments.template)
    folder = Path()
    if arguments.templates:
        path = Path(arguments.templates)
        folder = path.parent
        try:
            given = read_yaml(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"--templates {arguments.templates!r} cannot be read: {error}") from error
        if given.problems or not isinstance(given.value, dict):
            why = f" ({given.problems[0]})" if given.problems else ""
            raise ConfigurationError(f"--templates names a file with a mapping of templates{why}")
        named |= given.value
    limits = {name: getattr(arguments, name) for name in SANDBOX_LIMITS if getattr(arguments, name) is not None}
    server = LocalSandboxServer(
        command_templates(named, folder, limits, network=arguments.network),
        host=arguments.host,
        port=arguments.port,
        api_key=arguments.key,
        warm=arguments.warm,
        max_sandboxes=arguments.max_sandboxes,
        unsafe=arguments.unsafe,
    )
    serve_until_stopped(server, partial(print, flush=True))
    return 0


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

    _quiet()  # takes seconds, in which no folder must be left behind
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


def _quiet(served: bool = False) -> None:
    """Load the model library, unless the model is served elsewhere, and keep its progress bars out of ours."""
    if served:
        return
    from tiltyard._optional import require

    require("torch", "train")
    require("transformers.utils.logging", "train").disable_progress_bar()


def _run_name(stem: str) -> str:
    return f"runs/{stem}-{time.strftime('%Y%m%d-%H%M%S')}"


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
