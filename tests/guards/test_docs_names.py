"""Names that the manual is built on: the API reference has all of them, and the tables for newcomers name real ones."""

import importlib.util
import inspect
import re
from pathlib import Path

import api_pages
import pytest
from doc_blocks import DOCS, page_name
from test_docs_commands import parser_of

import tiltyard
from tiltyard.manifest.keys import leaf_paths

COMING = sorted((DOCS / "coming").glob("*.md"))


def table_rows(page):
    """The two first cells of each row of the tables whose second column is ours."""
    ours = False
    for line in page.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            ours = False
        elif re.match(r"\| [\w ]+ \| Tiltyard \|", line):
            ours = True
        elif ours and not line.startswith("|---"):
            theirs, here = line.strip("|").split("|")[:2]
            yield theirs, re.findall(r"`([^`]+)`", here)


def exists(name):
    """Whether a name of ours is there: a command, a key of a manifest, a public name, an attribute or a parameter."""
    if name.startswith("tiltyard "):
        return parser_of(name.split()[1]) is not None
    if name in set(leaf_paths()):
        return True
    called = re.fullmatch(r"(\w+)\((\w+)=…\)", name)
    if called:
        return called[2] in inspect.signature(getattr(tiltyard, called[1])).parameters
    first, *rest = name.split(".")
    found = getattr(tiltyard, first, None) if first in tiltyard.__all__ else None
    for attribute in rest:
        found = getattr(found, attribute, None)
    return found is not None


@pytest.mark.parametrize("page", COMING, ids=page_name)
def test_what_a_newcomer_is_told_to_use_is_there(page):
    """Our side of every table."""
    assert [name for _, names in table_rows(page) for name in names if not exists(name)] == []


def test_every_library_has_a_table():
    """A page without one would be checked by nothing."""
    assert [page.name for page in COMING if page.name != "index.md" and not list(table_rows(page))] == []


def test_the_names_of_trl_are_those_of_the_installed_one():
    """Their side, where TRL is installed (for the benchmarks): every name stands in its source."""
    spec = importlib.util.find_spec("trl")
    if spec is None or spec.origin is None:
        pytest.skip("trl is not installed")
    sources = Path(spec.origin).parent.glob("trainer/*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in sources) + "report_to train_dataset"
    theirs = [name for cell, _ in table_rows(DOCS / "coming" / "trl.md") for name in re.findall(r"`(\w+)`", cell)]
    assert theirs
    assert [name for name in theirs if not re.search(rf"\b{name}\b", text)] == []


def test_the_api_reference_has_every_public_name_once():
    """`make format` writes it."""
    assert sorted(api_pages.named_on_pages()) == sorted(tiltyard.__all__)


def test_the_api_reference_is_up_to_date():
    """Its pages are those that the code gives, and no others."""
    found = {path.name: path.read_text(encoding="utf-8") for path in api_pages.FOLDER.glob("*.md")}
    assert found == api_pages.pages()


def test_every_public_name_says_what_it_is():
    """The index shows the first line of each docstring."""
    assert [name for name in tiltyard.__all__ if not api_pages.summary(name)] == []


def test_every_page_has_its_place_in_the_navigation():
    """A page that nothing leads to is not read."""
    navigation = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert [page for page in pages if f": {page}\n" not in navigation] == []


def test_every_example_is_listed():
    """`examples/README.md` says what each one shows."""
    folder = DOCS.parent / "examples"
    text = (folder / "README.md").read_text(encoding="utf-8")
    names = [path.name + "/" * path.is_dir() for path in folder.iterdir() if path.name[0] not in "._"]
    assert [name for name in sorted(names) if f"`{name}`" not in text and name != "README.md"] == []


def test_the_readme_says_what_every_package_is():
    """The list of files is whole."""
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    packages = [path.parent.name for path in (DOCS.parent / "src" / "tiltyard").glob("*/__init__.py")]
    assert [name for name in packages if not re.search(rf"`(src/tiltyard/)?{name}`", text)] == []
