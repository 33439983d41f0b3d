"""The parts of the manual that are written from the code: run this file, or `make format`, to write them again."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tiltyard.manifest import Manifest
from tiltyard.manifest.keys import leaf_paths

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "tiltyard"

PARTS = ("tools", "tokens", "policies", "models", "rows", "envs", "rollout", "train", "report", "manifest", "demo", "testing")
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
    lines = [f"| `{path}` | {default(field(path))} | {field(path).description or ''} |" for path in leaf_paths()]
    return "\n".join(["| Key | Default | What it says |", "|---|---|---|", *lines, ""])


def field(path: str) -> Any:
    """The pydantic field behind a dotted path."""
    model: Any = Manifest
    found: Any = None
    for name in path.split("."):
        found = model.model_fields[name]
        model = found.annotation
    return found


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
    for name in GENERATED:
        (DOCS / name).write_text(whole(name), encoding="utf-8")
