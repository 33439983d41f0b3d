"""Servers: `tiltyard serve`, `sandbox` and `reap`."""

import argparse
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiltyard.errors import ConfigurationError

if TYPE_CHECKING:
    from tiltyard.cli.options import Commands

# What a command runs is imported by the command: `tiltyard --help` must not wait for torch.
# ruff: noqa: PLC0415

HIGHEST_PORT = 65535

SANDBOX_LIMITS = {
    "memory_mib": "memory in MiB",
    "processes": "processes and threads",
    "cpus": "share of the CPUs, such as 0.5",
    "disk_mib": "disk in MiB",
    "open_files": "open files of a process",
}


def add_serving(commands: "Commands") -> None:
    """Add `serve`, `sandbox` and `reap`."""
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


def _port(text: str) -> int:
    """The number of a TCP port, 0 for a free one."""
    if not (text.isdecimal() and int(text) <= HIGHEST_PORT):
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to {HIGHEST_PORT}, got {text!r}")
    return int(text)


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


def _reap(arguments: argparse.Namespace) -> int:
    from tiltyard.envs.agent.env import AgentEnv

    killed = AgentEnv.reap(arguments.run_id, arguments.api_url, arguments.key)
    for name in killed:
        print(f"killed sandbox {name}")
    print(f"{len(killed)} sandboxes were left")
    return 0
