"""The rubric or reward function in a Python file."""

import inspect
from pathlib import Path
from typing import Any

from tiltyard.errors import ConfigurationError
from tiltyard.rewards.rubric import Function, Rubric, as_rubric
from tiltyard.rollout.entrypoint import load_entrypoint, load_file

USUAL = "RUBRIC"
"""The name that is taken where none is given and there are several."""


def load_rubric(path: str | Path, name: str | None = None) -> Rubric:
    """Load what scores answers from a file.

    Args:
        path: The file; it can import the files beside it.
        name: The rubric or function in it. None takes `RUBRIC`, else its only rubric, else its only public function.

    Raises:
        ConfigurationError: There is no such file or name, none is given and several fit, or what is there is neither a
            rubric nor a function. What the file itself raises escapes as it is.
    """
    file = Path(path)
    found: Any = load_entrypoint(f"{file}:{name}") if name else _only_one(file)
    if isinstance(found, type) or not (callable(found) or isinstance(found, Rubric)):
        kind = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
        raise ConfigurationError(
            f"{name!r} of {file} is {kind}; it must be a function that scores an answer, or a rubric such as "
            "WeightedSum({...})"
        )
    return Function(found, name) if name and not isinstance(found, Rubric) and _unnamed(found) else as_rubric(found)


def _only_one(file: Path) -> Any:
    module = load_file(file)
    public = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    if USUAL in public:
        return public[USUAL]
    rubrics = {key: value for key, value in public.items() if isinstance(value, Rubric)}
    functions = {
        key: value for key, value in public.items() if inspect.isfunction(value) and value.__module__ == module.__name__
    }
    found = rubrics or functions
    if len(found) != 1:
        several = f"has {', '.join(found)}" if found else "has no rubric and no public function"
        raise ConfigurationError(f"{file} {several}; say with rubric_name which one scores the answers")
    return next(iter(found.values()))


def _unnamed(scores: Any) -> bool:
    return getattr(scores, "__name__", "<lambda>") == "<lambda>"
