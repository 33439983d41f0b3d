"""The examples of `docs/openenv.md` that need `openenv` run as the others do; those run in `tests/guards`."""

import importlib.util
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("doc_blocks", TESTS / "guards" / "doc_blocks.py")


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    """All of them, one after another."""
    assert SPEC is not None
    assert SPEC.loader is not None
    doc_blocks = importlib.util.module_from_spec(SPEC)
    monkeypatch.setitem(sys.modules, "doc_blocks", doc_blocks)  # its dataclass looks itself up there
    SPEC.loader.exec_module(doc_blocks)
    monkeypatch.chdir(tmp_path)
    found = [block for block in doc_blocks.blocks(doc_blocks.DOCS / "openenv.md") if block.language == "python"]
    assert any(doc_blocks.needed(block) == "openenv" for block in found)
    for block in found:
        if block.title:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
    namespace = {"__name__": "docs"}
    for block in found:
        exec(compile(block.text, f"docs/openenv.md: {block.title or 'example'}", "exec"), namespace)
