"""The documentation is true: what it shows runs, what it lists exists, and its tables are those of the code.

A fenced block says what it is. ```python runs, block after block of a page in one namespace; ```yaml is a
manifest and is loaded. A block with a title (```python title="guess.py") is also written to a file of that
name, so that a manifest can name it. Everything else is ```console or ```text, and is not run.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from generated_pages import GENERATED, whole

from tiltyard.manifest import load_manifest
from tiltyard.rollout.outcome import ENDINGS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?[^\n]*\n(.*?)^```$', re.MULTILINE | re.DOTALL)
KNOWN_FENCES = {"python", "yaml", "console", "text", "make"}


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    text: str


def blocks(page):
    return [Block(*found) for found in FENCE.findall(page.read_text(encoding="utf-8"))]


def page_name(page):
    return str(page.relative_to(ROOT))


def rows(page, first_heading):
    """The cells of the table whose head begins with this cell."""
    lines = iter((DOCS / page).read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.startswith(f"| {first_heading} |"):
            break
    next(lines)
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    """A reader can paste them, one after another."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "docs"}
    for block in blocks(page):
        if block.title:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
    for block in blocks(page):
        if block.language == "python":
            exec(compile(block.text, f"{page_name(page)}: {block.title or 'example'}", "exec"), namespace)
        elif block.language == "yaml":
            path = tmp_path / (block.title or "manifest.yaml")
            path.write_text(block.text, encoding="utf-8")
            load_manifest(path)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_block_says_what_it_is(page):
    """A block without a language would be neither run nor known not to be."""
    assert {block.language for block in blocks(page)} <= KNOWN_FENCES


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_to_files_lead_somewhere(page):
    """Moving a file moves its links."""
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_the_table_of_endings_is_that_of_the_code():
    """`docs/endings.md` is where a reader looks up what an ending means."""
    told = {True: "yes", False: "no"}
    wanted = [
        [f"`{ending.value}`", told[fate.truncated], told[fate.failed], fate.meaning] for ending, fate in ENDINGS.items()
    ]
    assert rows("endings.md", "Ending") == wanted


@pytest.mark.parametrize("page", GENERATED)
def test_what_is_written_from_the_code_is_up_to_date(page):
    """Every module and manifest key stands in the manual, with the words of the code; `make format` writes them."""
    assert (DOCS / page).read_text(encoding="utf-8") == whole(page)


def test_every_benchmark_is_explained():
    """`benchmarks/README.md` says what each one measures."""
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    names = [path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__init__"]
    assert [name for name in names if f"`python -m benchmarks.{name}`" not in text] == []


@pytest.mark.parametrize(
    "manifest",
    sorted([*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("src/tiltyard/demo/*.yaml")]),
    ids=lambda path: path.name,
)
def test_every_manifest_that_is_shipped_loads(manifest):
    """A key that changes its name changes here too."""
    load_manifest(manifest)
