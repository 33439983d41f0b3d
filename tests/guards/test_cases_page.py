"""`docs/cases.md` names tests that there are."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| Case |", "| Trap |"))]
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))
CASES = {
    "CK": ["01"],
    "CO": ["01", "02"],
    "DS": ["01", "02", "04"],
    "LW": ["01"],
    "LO": ["01", "02", "03", "05", "07"],
    "MF": ["01", "02", "03"],
    "OE": ["01", "02", "03", "04"],
    "RA": ["01", "02"],
    "RW": ["01", "02", "04"],
    "SB": ["01", "02", "04"],
    "TE": ["01"],
    "TK": ["01", "02", "04", "05", "07"],
    "TR": ["01", "02"],
}


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_the_tests_that_the_page_names_exist(file):
    """A test that is renamed or removed takes its promise with it."""
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert [name for named, name in NAMED if named == file and name not in tests] == []


def test_every_row_of_the_page_names_a_test():
    """A sentence that nothing holds is not there."""
    assert [row for row in ROWS if not re.search(r"`[\w/]+\.py::test_\w+`", row)] == []


def test_every_case_has_its_rows():
    """Three or more things are right in each."""
    names = [f"{theme}-{number}" for theme, numbers in CASES.items() for number in numbers]
    counts = {name: sum(row.startswith(f"| {name} |") for row in ROWS) for name in names}
    assert {name: count for name, count in counts.items() if count < 3} == {}
