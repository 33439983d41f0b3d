"""Every code sample of the reference texts is a test, and `tests/reference/README.md` says which."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS / "reference" / "README.md").read_text(encoding="utf-8")
SAMPLES = {
    "Twinkle, Environments (Envs)": 14,
    "Twinkle, 执行环境": 14,
    "AgileRL, Environments (OpenEnv)": 15,
    "Twinkle, OpenEnv 集成": 9,
}
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))


def rows(title):
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if re.search(r"`[\w/]+\.py::test_\w+` \|$", line)]


@pytest.mark.parametrize("title", SAMPLES)
def test_every_sample_of_a_text_has_its_test(title):
    """As many rows as the text has samples."""
    assert len(rows(title)) == SAMPLES[title]


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_the_tests_that_the_samples_name_exist(file):
    """A test that is renamed or removed takes its sample with it."""
    path = TESTS / file
    if not path.parent.exists():
        pytest.skip(f"{path.parent.name} is no part of this checkout")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert [name for named, name in NAMED if named == file and name not in tests] == []
