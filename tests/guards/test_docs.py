"""The documentation is true: what it shows runs and prints what it says, and its tables are those of the code.

`doc_blocks.py` says what a fenced block is; the commands are checked in `test_docs_commands.py`.
"""

import contextlib
import io
import re
from itertools import pairwise

import pytest
from doc_blocks import DOCS, OUTPUT, PAGES, ROOT, Block, blocks, is_here, needed, page_name
from generated_pages import GENERATED, whole

from tiltyard.manifest import load_manifest
from tiltyard.manifest.probing import env_factory, probe
from tiltyard.rollout.outcome import ENDINGS

KNOWN_FENCES = {"python", "yaml", "toml", "json", "console", "text", "make"}


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
    """A reader can paste them, one after another, and sees what the page says is printed."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "docs"}
    found = blocks(page)
    for block in found:
        if block.title and block.title != OUTPUT:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
    for block, behind in pairwise([*found, Block("", "", "")]):
        if block.language == "python":
            code = compile(block.text, f"{page_name(page)}: {block.title or 'example'}", "exec")
            if not is_here(needed(block)):
                continue
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(code, namespace)
            if behind.title == OUTPUT:
                assert printed.getvalue() == behind.text
        elif block.language in {"yaml", "toml"}:
            path = tmp_path / (block.title or f"manifest.{block.language}")
            path.write_text(block.text, encoding="utf-8")
            assert_sound(load_manifest(path), tmp_path)


def assert_sound(manifest, folder):
    """What a manifest names is there, as far as the page has it: its environment is made and asked."""
    section = manifest.environment
    here = [section.rubric_file_path, section.dataset, (section.entrypoint or "").partition(":")[0]]
    files = [name for name in here if name and name.endswith((".py", ".jsonl", ".parquet"))]
    if section.env_type == "rollout" and section.env_url is None and all((folder / name).exists() for name in files):
        assert probe(section, env_factory(section)).max_turns >= 1


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_an_output_follows_the_block_that_prints_it(page):
    """Elsewhere nothing would compare it."""
    found = [Block("", "", ""), *blocks(page)]
    assert [
        block.text for before, block in pairwise(found) if block.title == OUTPUT and before.language != "python"
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_block_says_what_it_is(page):
    """A block without a language would be neither run nor known not to be."""
    assert {block.language for block in blocks(page)} <= KNOWN_FENCES


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_no_python_hides_in_another_block(page):
    """What a reader could paste is run: a block that imports something of ours is fenced as python."""
    others = [block.text for block in blocks(page) if block.language != "python"]
    assert [text for text in others if re.search(r"^(from|import) tiltyard", text, re.MULTILINE)] == []


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
