"""The commands that the manual shows are there, with the options that it shows."""

import argparse
import re
import shlex
import tomllib

import pytest
from doc_blocks import EVERY_PAGE, ROOT, blocks, page_name, spans

from tiltyard import cli

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])
OTHERS = {"cd", "curl", "export", "git", "tensorboard", "torchrun", "accelerate", "trackio", "wandb"}
"""Commands that are not ours."""


def commands(text):
    """The commands of a block, as words: without comments and prompts, one for each part of a line."""
    for line in text.replace("\\\n", " ").splitlines():
        read = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=";&|")
        read.whitespace_split = True
        words: list[str] = []
        for word in [*read, ";"]:
            if word.strip(";&|"):
                if words or not re.match(r"[A-Z_]+=", word):
                    words.append(word)
            elif words:
                yield words
                words = []


def parser_of(command):
    """The parser of one of our commands; None where there is no such command."""
    (subparsers,) = (a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    return subparsers.choices.get(command)


def fault(words):
    """What is wrong with a command, or ""."""
    name, rest = words[0].removeprefix(".venv/bin/"), words[1:]
    if name == "tiltyard":
        return _parsed(rest)
    if name in {"python", "python3"}:
        return _python(rest)
    if name == "make":
        asked = [word for word in rest if "=" not in word]
        return "" if set(asked) <= TARGETS else f"no target {asked}"
    if name == "pip":
        named = {
            extra for word in rest for extra in (re.findall(r"\[([\w,-]+)\]", word) or [""])[0].split(",") if extra
        }
        return "" if named <= EXTRAS else f"no extra {named - EXTRAS}"
    return "" if name in OTHERS else f"unknown command {name!r}"


def _parsed(words):
    try:
        cli._parser().parse_args(words)
    except SystemExit as end:
        return "" if end.code == 0 else "does not parse"
    return ""


def _python(words):
    if words[:1] == ["-m"]:
        path = ROOT.joinpath(*words[1].split("."))
        known = path.with_suffix(".py").exists() or (path / "__main__.py").exists() or words[1] in {"pytest", "pip"}
        return "" if known else f"no module {words[1]}"
    return "" if not words or (ROOT / words[0]).exists() else f"no file {words[0]}"


@pytest.mark.parametrize("page", EVERY_PAGE, ids=page_name)
def test_every_command_of_a_block_is_there(page, capsys):
    """Its name and options are those of the command line, its target is one of the Makefile, its file is there."""
    found = [words for block in blocks(page) if block.language == "console" for words in commands(block.text)]
    faults = {" ".join(words): fault(words) for words in found}
    assert {line: what for line, what in faults.items() if what} == {}


@pytest.mark.parametrize("page", EVERY_PAGE, ids=page_name)
def test_every_command_in_a_sentence_is_there(page):
    """`tiltyard NAME --option` and `make NAME` in running text."""
    missing = []
    for span in spans(page.read_text(encoding="utf-8")):
        ours = re.match(r"tiltyard (\w+)", span)
        if ours:
            parser = parser_of(ours[1])
            options = set(re.findall(r"(?<!\S)(--?[a-z][\w-]*)", span))
            if parser is None or not options <= set(parser._option_string_actions):
                missing.append(span)
        elif re.match(r"make [a-z-]+$", span) and span.split()[1] not in TARGETS:
            missing.append(span)
    assert missing == []


def test_every_command_has_a_place_in_the_manual():
    """A reader finds each by its name."""
    (subparsers,) = (a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    text = "".join(page.read_text(encoding="utf-8") for page in EVERY_PAGE)
    assert [name for name in subparsers.choices if f"tiltyard {name}" not in text] == []
