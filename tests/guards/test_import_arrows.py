"""The layers of the package: imports point one way, and importing the package is light."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "tiltyard"

# The layers from the ground up. A module may import from its own layer and from those below it.
LAYERS = (
    ("errors", "_optional", "_boundary", "_coroutines", "_local", "_retired"),
    ("types", "leases"),
    ("tools",),
    ("tokens",),
    ("policies", "models"),
    ("rows",),
    ("envs", "rewards", "sandbox"),
    ("rollout",),
    ("serving",),
    ("train",),
    ("report",),
    ("manifest",),
    ("planning", "build", "build_dataset", "play", "training", "training_rows", "export", "rehearsal", "checking"),
    ("scaffold",),
    ("testing", "demo"),
    ("cli", "__main__"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
SIDE_ROOMS = {"testing", "demo"}  # may import what they like below cli; only they and cli may import them
MAY_IMPORT_SIDE_ROOMS = SIDE_ROOMS | {"cli", "__main__"}


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def part(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_parts(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            module = node.module or ""
            names = [f"tiltyard.{alias.name}" for alias in node.names] if module == "tiltyard" else [module]
        for name in names:
            head, _, rest = name.partition(".")
            if head == "tiltyard" and rest:
                yield rest.partition(".")[0], node.lineno


def test_every_part_of_the_package_has_a_layer():
    """A new part is given its place here, so that its imports are looked at."""
    assert {part(path) for path in modules()} - set(RANK) == set()


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down_the_layers(path):
    """What an environment is does not depend on how a model is trained, and so on down the list."""
    own = part(path)
    wrong = [
        f"{path.relative_to(SOURCE)}:{line} imports tiltyard.{other}"
        for other, line in imported_parts(ast.parse(path.read_text()))
        if RANK.get(other, -1) > RANK[own]
        or (other in SIDE_ROOMS and other != own and own not in MAY_IMPORT_SIDE_ROOMS)
    ]
    assert wrong == []


HEAVY = (
    "torch numpy transformers peft renderers tokenizers safetensors gguf ray openenv e2b datasets pandas matplotlib trl"
)


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_loads_nothing_heavy():
    """A command line or an environment server starts at once, and works without the extras."""
    code = f"import sys, tiltyard; print([name for name in {HEAVY!r}.split() if name in sys.modules])"
    assert fresh(code) == "[]"


def test_the_command_line_loads_nothing_heavy_until_it_trains():
    """`tiltyard --help` and `tiltyard check` answer at once."""
    code = f"import sys, tiltyard.cli; print([name for name in {HEAVY!r}.split() if name in sys.modules])"
    assert fresh(code) == "[]"


def test_importing_the_package_leaves_the_process_as_it_was():
    """No prints, no environment variables, no threads, no files."""
    code = (
        "import os, threading; before = dict(os.environ), threading.active_count(), set(os.listdir('.')); "
        "import tiltyard; "
        "print(before == (dict(os.environ), threading.active_count(), set(os.listdir('.'))))"
    )
    assert fresh(code) == "True"
