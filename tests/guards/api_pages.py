"""The pages of the API reference: which public name stands on which page; the words are those of the docstrings.

`generated_pages.py` writes them. The page of a name follows from the module where it lives, so that a new public name
has its place without being named here.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import tiltyard

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "api"


@dataclass(frozen=True)
class Page:
    """One page, and the packages and modules whose public names stand on it; "" is all others."""

    name: str
    title: str
    says: str
    homes: tuple[str, ...]


PAGES = (
    Page("values", "Values", "What passes between environments, policies and the loop.", ("types",)),
    Page("errors", "Errors", "Every exception that is raised on purpose, as one tree.", ("errors",)),
    Page("tools", "Tools", "What a model can call, and how calls are read, checked and run.", ("tools",)),
    Page(
        "environments",
        "Environments",
        "What an environment is, how it becomes turns, and how it is checked.",
        ("envs",),
    ),
    Page(
        "rows",
        "Rows and rewards",
        "Data rows, what asks them, and what scores the answers.",
        ("rows", "rewards", "envs.qa", "rollout.judge", "rollout.scoring"),
    ),
    Page(
        "servers",
        "Servers and sessions",
        "Environments behind a URL, in other processes and in sandboxes.",
        ("serving", "sandbox", "envs.openenv", "envs.pool", "envs.agent", "envs.observation", "rollout.in_process"),
    ),
    Page("models", "Models and policies", "What answers a prompt, and what loads it.", ("policies", "models", "build")),
    Page("tokens", "Tokens", "Conversations as ids that are appended and never encoded again.", ("tokens",)),
    Page("rollouts", "Rollouts", "The loop, what drives it, tasks, groups and endings.", ("rollout",)),
    Page(
        "training",
        "Training",
        "Algorithms, batches, the learner, whole runs.",
        ("train", "training", "training_rows", "export"),
    ),
    Page("runs", "Manifest and the rest", "The manifest, and what belongs to no other page.", ("",)),
)


def page_of(home: str) -> Page:
    """The page of names that live in a module such as `tiltyard.envs.base`: that which names most of it."""
    inside = f"{home.removeprefix('tiltyard').removeprefix('.')}."
    fits = [(len(part), page) for page in PAGES for part in page.homes if inside.startswith(f"{part}." if part else "")]
    return max(fits, key=lambda fit: fit[0])[1]


def summary(name: str) -> str:
    """The first line of the docstring of a public name, read from the source: nothing is imported."""
    home = ROOT.joinpath("src", *tiltyard._HOME[name].split("."))
    path = home / "__init__.py" if home.is_dir() else home.with_suffix(".py")
    return _summary(path, name).replace("|", "\\|")


def _summary(path: Path, name: str) -> str:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for number, node in enumerate(body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return (ast.get_docstring(node) or "").split("\n")[0]
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in _targets(node):
            behind = body[number + 1] if number + 1 < len(body) else None
            text = behind.value if isinstance(behind, ast.Expr) else None
            return str(text.value).split("\n")[0] if isinstance(text, ast.Constant) else ""
    for node in body:
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            module = ROOT.joinpath("src", *(node.module or "").split("."))
            return _summary(module / "__init__.py" if module.is_dir() else module.with_suffix(".py"), name)
    raise ValueError(f"{path} does not define {name}")


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def names_of(page: str) -> list[str]:
    """The public names of a page, in the order of the alphabet."""
    return sorted((n for n in tiltyard.__all__ if page_of(tiltyard._HOME[n]).name == page), key=str.lower)


def pages() -> dict[str, str]:
    """The text of every page, by its file's name."""
    return {"index.md": _index(), **{f"{page.name}.md": _page(page) for page in PAGES}}


def _page(page: Page) -> str:
    lines = [f"# {page.title}", "", page.says, ""]
    for name in names_of(page.name):
        lines += [f"::: tiltyard.{name}", ""]
    return "\n".join(lines)


def _index() -> str:
    lines = [
        "# API reference",
        "",
        "Every public name; all are imported from `tiltyard` itself, and loaded when they are first used.",
        "The pages are written from the docstrings. What is not listed here may change without notice.",
        "",
    ]
    for page in PAGES:
        lines += [f"## [{page.title}]({page.name}.md)", "", page.says, "", "| Name | What it is |", "|---|---|"]
        lines += [f"| [`{name}`]({page.name}.md#tiltyard.{name}) | {summary(name)} |" for name in names_of(page.name)]
        lines.append("")
    return "\n".join(lines)


def named_on_pages() -> list[str]:
    """The public names for which some page of the folder has an entry, once for each entry."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md")))
    return [name for text in texts for name in re.findall(r"^::: tiltyard\.(\w+)$", text, re.MULTILINE)]


def write() -> None:
    """Write all pages, and remove those that no longer have names."""
    FOLDER.mkdir(exist_ok=True)
    texts = pages()
    for path in FOLDER.glob("*.md"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
