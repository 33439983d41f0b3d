"""The fenced blocks of the manual.

A fence says what a block is. ```python runs, block after block of a page in one namespace; ```yaml is a manifest;
```console holds commands. A block with a title (```python title="guess.py") is also a file of that name. A block
```text title="output" is what the Python block before it prints. A Python block that begins with `# needs NAME` runs
where that package can be imported, and is only compiled elsewhere.
"""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
EVERY_PAGE = [
    *PAGES,
    *(ROOT / name for name in ("CONTRIBUTING.md", "benchmarks/README.md")),
    *ROOT.glob("examples/**/*.md"),
]
FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?[^\n]*\n(.*?)^```$', re.MULTILINE | re.DOTALL)
OUTPUT = "output"


@dataclass(frozen=True)
class Block:
    """A fenced block; `title` is empty where it has none."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in their order."""
    return [Block(*found) for found in FENCE.findall(page.read_text(encoding="utf-8"))]


def needed(block: Block) -> str:
    """The package that a Python block needs beside ours; "" where it needs none."""
    found = re.match(r"# needs (\w+)\n", block.text)
    return found[1] if found else ""


def is_here(package: str) -> bool:
    """Whether a package can be imported; "" can."""
    return not package or importlib.util.find_spec(package) is not None


def spans(text: str) -> list[str]:
    """The code spans of a text outside its blocks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", FENCE.sub("", text))


def page_name(page: Path) -> str:
    """How a page is called in a test's name."""
    return page.relative_to(ROOT).as_posix()
