"""What the source may not do: write to the process's environment, or print where nobody asked."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "tiltyard"
MODULES = sorted(SOURCE.rglob("*.py"))
MAY_PRINT = SOURCE / "cli"
ENVIRON_WRITES = {"putenv", "unsetenv"}
MAPPING_WRITES = {"update", "setdefault", "pop", "popitem", "clear"}


def is_environ(node: ast.AST) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id == "environ"
    )


def faults(tree: ast.AST, may_print: bool) -> list[str]:
    found = []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Call):
            to_stdout = not any(keyword.arg == "file" for keyword in node.keywords)
            if isinstance(node.func, ast.Name) and node.func.id == "print" and to_stdout and not may_print:
                found.append(f"{line}: print")
            if isinstance(node.func, ast.Attribute) and (
                node.func.attr in ENVIRON_WRITES or (node.func.attr in MAPPING_WRITES and is_environ(node.func.value))
            ):
                found.append(f"{line}: writes os.environ")
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
        for target in targets:
            if isinstance(target, ast.Subscript) and is_environ(target.value):
                found.append(f"{line}: writes os.environ")
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            found.append(f"{line}: bare except")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_source_neither_prints_nor_writes_the_environment(path):
    """A library speaks through return values, errors and the report; a process's variables are the user's."""
    assert faults(ast.parse(path.read_text()), may_print=path.is_relative_to(MAY_PRINT)) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_says_in_one_line_why_it_exists(path):
    """The first line of a module is what the file lists are made of."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert docstring.split("\n")[0].strip() != ""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_stay_small(path):
    """Above 500 lines a module has two reasons to change."""
    assert len(path.read_text().splitlines()) <= 500
