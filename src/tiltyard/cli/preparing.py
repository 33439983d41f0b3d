"""Before a run: `tiltyard init`, `check` and `schema`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tiltyard.cli.options import FAILED, add_no_install, add_set, ready
from tiltyard.errors import ConfigurationError

if TYPE_CHECKING:
    from tiltyard.cli.options import Commands

# What a command runs is imported by the command: `tiltyard --help` must not wait for torch.
# ruff: noqa: PLC0415

MANIFEST_ENDINGS = (".yaml", ".yml", ".toml")


def add_preparing(commands: "Commands") -> None:
    """Add `init`, `check` and `schema`."""
    init = commands.add_parser("init", help="write an environment that works, a manifest and a test into a new folder")
    init.add_argument("folder", metavar="NAME", help="the folder to make")
    init.add_argument("--tools", action="store_true", help="an environment of tool calls; otherwise one of text")
    init.set_defaults(run=_init)

    check = commands.add_parser("check", help="try out an environment, or a manifest and its environment")
    check.add_argument("what", help="a manifest, a folder of `init`, or an entrypoint: module:attr or path.py:attr")
    add_set(check)
    add_no_install(check)
    check.set_defaults(run=_check)

    schema = commands.add_parser("schema", help="print the JSON Schema of a manifest, for editors")
    schema.add_argument("--out", metavar="FILE", help="the file to write, in place of standard output")
    schema.set_defaults(run=_schema)


def _init(arguments: argparse.Namespace) -> int:
    from tiltyard.scaffold import write_scaffold

    print(write_scaffold(arguments.folder, tools=arguments.tools))
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
        if ":" not in arguments.what:
            raise ConfigurationError(
                f"there is no folder {arguments.what!r}, and it is neither a manifest ({', '.join(MANIFEST_ENDINGS)}) "
                "nor an entrypoint (module:attr or path.py:attr)"
            )
        found = check_entrypoint(arguments.what)
        print(found)
        return 0 if found.ok else FAILED
    manifest = load_manifest(path, arguments.set)
    if manifest.environment.env_type == "dataset":
        from tiltyard.build_dataset import check_dataset_manifest

        print(f"{path}: the manifest is sound")
        print(check_dataset_manifest(manifest))
        return 0
    ready(manifest, arguments)
    found = check_manifest(manifest)
    print(f"{path}: the manifest is sound; {found.facts.max_turns} turns, {found.facts.rows or 'no'} rows")
    print(found)
    print(f"{path}: {'ready to train' if found.ok else 'not ready'}")
    return 0 if found.ok else FAILED


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
