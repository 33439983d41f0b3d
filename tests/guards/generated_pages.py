"""The parts of the manual that are written from the code: run this file, or `make format`, to write them again."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import api_pages

from tiltyard.manifest import ALGORITHM_SECTIONS, Manifest
from tiltyard.manifest.algorithms import DEFAULT_ALGORITHM
from tiltyard.manifest.keys import leaf_paths, sections_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "tiltyard"

PARTS = (
    "tools",
    "tokens",
    "policies",
    "models",
    "rows",
    "envs",
    "rollout",
    "train",
    "report",
    "manifest",
    "demo",
    "testing",
)
"""The packages in the order of the layers; any other package follows them."""


def reason(path: Path) -> str:
    """The first line of a module, which says why it exists."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if docstring is None:
        raise ValueError(f"{path} has no docstring; its first line says why the file exists")
    return docstring.split("\n")[0].replace("|", "\\|")


def table(paths: Iterator[Path]) -> list[str]:
    lines = [f"| `{path.relative_to(SOURCE).as_posix()}` | {reason(path)} |" for path in sorted(paths)]
    return ["| Module | Why it exists |", "|---|---|", *lines, ""]


def module_tables() -> str:
    """One table for the modules at the top, and one for each package."""
    ground = (path for path in SOURCE.glob("*.py") if path.name != "__init__.py")
    lines = ["### The package itself", "", *table(ground)]
    found = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    for part in [*(name for name in PARTS if name in found), *sorted(found - set(PARTS))]:
        package = SOURCE / part
        modules = (path for path in package.rglob("*.py") if path.name != "__init__.py")
        lines += [f"### `{part}`", "", reason(package / "__init__.py"), "", *table(modules)]
    return "\n".join(lines)


def key_table() -> str:
    """One line for each key of a manifest."""
    lines = [f"| `{path}` | {defaults(path)} | {descriptions(path)} |" for path in leaf_paths()]
    return "\n".join(["| Key | Default | What it says |", "|---|---|---|", *lines, ""])


def fields(path: str) -> dict[str, Any]:
    """The pydantic fields behind a dotted path, by the name of the section's kind; "" where it has only one."""
    models: dict[str, Any] = {"": Manifest}
    *sections, key = path.split(".")
    for section in sections:
        kinds = sections_of(models[""], section)
        models = {"": kinds[0]} if len(kinds) == 1 else {k.model_fields["name"].default: k for k in kinds}
    return {name: model.model_fields[key] for name, model in models.items() if key in model.model_fields}


def defaults(path: str) -> str:
    """The key's default; of several kinds of section that of the first, then those that differ, by name."""
    if path == "algorithm.name":
        return f"`{DEFAULT_ALGORITHM}`"
    by_name = {name: default(key) for name, key in fields(path).items()}
    first = next(iter(by_name.values()))
    return "; ".join([first, *(f"{name} {other}" for name, other in by_name.items() if other != first)])


def descriptions(path: str) -> str:
    """What the key says, and which kinds of section have it, where not all have."""
    by_name = fields(path)
    said = next(iter(by_name.values())).description or ""
    if path == "algorithm.name":
        return f"One of {', '.join(f'`{name}`' for name in by_name)}."
    all_have_it = "" in by_name or len(by_name) == len(ALGORITHM_SECTIONS)
    return said if all_have_it else f"{', '.join(by_name)}: {said[0].lower()}{said[1:]}"


def default(key: Any) -> str:
    if key.is_required():
        return "required"
    if isinstance(key.default, bool):
        return f"`{str(key.default).lower()}`"
    return "" if key.default is None else f"`{key.default}`"


GENERATED = {"architecture.md": ("## Modules", module_tables), "manifest.md": ("## All keys", key_table)}
"""For each page the heading after which it is generated, and what writes that part."""


def whole(page: str) -> str:
    """A page as it should be: its own words up to the heading, then what the code says."""
    heading, write = GENERATED[page]
    own, found, _ = (DOCS / page).read_text(encoding="utf-8").partition(f"\n{heading}\n")
    if not found:
        raise ValueError(f"docs/{page} has no heading {heading!r}, after which it is generated")
    return f"{own}\n{heading}\n\n{write()}"


if __name__ == "__main__":
    api_pages.write()
    for name in GENERATED:
        (DOCS / name).write_text(whole(name), encoding="utf-8")
