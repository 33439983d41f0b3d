"""From a manifest's text to checked values, with everything that is wrong said at once."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tiltyard.errors import ConfigurationError, ManifestError
from tiltyard.manifest.algorithms import ALGORITHM_SECTIONS
from tiltyard.manifest.asynchronous import asynchronous_problems, correct_samples
from tiltyard.manifest.environment import environment_problems
from tiltyard.manifest.keys import settle_keys
from tiltyard.manifest.package_names import packages_problems
from tiltyard.manifest.paths import settle_paths
from tiltyard.manifest.sections import LoraSection, Manifest, RolloutSection
from tiltyard.manifest.toml_text import read_toml
from tiltyard.manifest.yaml_text import Problem, join_path, read_yaml, write_yaml

_SAID: Mapping[tuple[str, str], str] = {
    ("environment.env_type", "multiturn"): "'multiturn' is retired; write env_type: rollout",
    ("environment.env_type", "reasoning"): "'reasoning' is retired; write env_type: rollout with max_turns: 1",
    ("environment.env_type", "sft"): "'sft' is retired; write env_type: dataset with objective: sft",
    (
        "environment.env_type",
        "preference",
    ): ("'preference' is retired; write env_type: dataset with objective: preference"),
    ("algorithm.advantage_granularity", "token"): (
        "'token' is a granularity of LLMPPO and LLMREINFORCE; a baseline that is the group's has no value of single "
        "tokens; write turn, or auto"
    ),
    ("algorithm.advantage_granularity", "trajectory"): (
        "'trajectory' is a granularity of GRPO, GSPO and CISPO; a return is that of an action; write turn, token, or "
        "auto"
    ),
}
"""Values that mean something elsewhere, with what to write instead."""

OF_OBJECTIVE: Mapping[str, str] = {"sft": "SFT", "preference": "DPO"}
"""The algorithm that learns from rows, by their objective."""

_SYMBOLS: Mapping[str, str] = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_WANTED: Mapping[str, str] = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "string_type": "text",
    "string_unicode": "text of whole characters",
}


def load_manifest(path: str | Path, overrides: Sequence[str] = ()) -> Manifest:
    """Read and check a manifest.

    Args:
        path: The YAML file, or a TOML file `*.toml`; the paths in it are relative to its folder.
        overrides: `section.key=value` each, the value as YAML; the paths in them are relative to the working folder.

    Raises:
        ManifestError: Something is wrong; the message lists all of it, by dotted path.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ManifestError(f"there is no manifest {file.absolute()}") from None
    except IsADirectoryError:
        raise ManifestError(f"{file.absolute()} is a folder; give the manifest in it") from None
    except OSError as error:
        raise ManifestError(f"{file.absolute()} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    return manifest_from_text(text, source=str(file), base=file.absolute().parent, overrides=overrides)


def manifest_from_text(text: str, *, source: str, base: Path, overrides: Sequence[str] = ()) -> Manifest:
    """Check a manifest's text; `source` is what errors call it, `base` where its relative paths start.

    It is YAML, or TOML where the name of its source ends so.

    Raises:
        ManifestError: Something is wrong; the message lists all of it, by dotted path.
    """
    read = (read_toml if source.endswith(".toml") else read_yaml)(text)
    problems = list(read.problems)
    if not isinstance(read.value, dict) or not _is_manifest(read.value):
        whole = problems if read.value is None and problems else [Problem("", _refusal(read.value))]
        raise _error(source, whole)
    return _manifest(read.value, problems, source, base, overrides)


def manifest_from_values(values: Mapping[str, Any], *, source: str, base: Path) -> Manifest:
    """Check what a manifest would say, given as nested mappings; `source` and `base` as in `manifest_from_text`.

    Raises:
        ManifestError: Something is wrong; the message lists all of it, by dotted path.
    """
    return _manifest(copy.deepcopy(dict(values)), [], source, base, ())


def _manifest(
    tree: dict[str, Any], problems: list[Problem], source: str, base: Path, overrides: Sequence[str]
) -> Manifest:
    settle_paths(tree, base, problems)
    for override in overrides:
        _apply(override, tree, problems)
    _name_algorithm(tree)
    correct_samples(tree)
    manifest = _validate(settle_keys(tree, problems), problems)
    if manifest is None:
        raise _error(source, problems)
    return manifest


def manifest_to_yaml(manifest: Manifest) -> str:
    """Write the manifest with every default spelled out; loading it gives an equal one."""
    return write_yaml(manifest.model_dump())


def _name_algorithm(tree: dict[str, Any]) -> None:
    """Give the algorithm its default name, which is another one where rows are learned."""
    environment, algorithm = tree.get("environment"), tree.get("algorithm") or {}
    objective = environment.get("objective") if isinstance(environment, Mapping) else None
    name = OF_OBJECTIVE.get(objective) if isinstance(objective, str) else None
    if name and isinstance(algorithm, Mapping) and isinstance(environment, Mapping):
        tree["algorithm"] = {"name": name, **algorithm}


def _is_manifest(tree: Mapping[Any, Any]) -> bool:
    return any(key in Manifest.model_fields for key in tree)


def _refusal(value: object) -> str:
    sections = ", ".join(Manifest.model_fields)
    if value is None:
        return f"the file is empty; a manifest has the sections {sections}"
    if not isinstance(value, dict):
        return f"a manifest is a mapping with the sections {sections}; this file holds {type(value).__name__} data"
    return f"not a manifest of this version: it has {', '.join(map(str, value))}, and none of the sections {sections}"


def _apply(override: str, tree: dict[str, Any], problems: list[Problem]) -> None:
    dotted, equals, text = override.partition("=")
    keys = dotted.strip().split(".")
    if not equals or not all(keys):
        problems.append(Problem("", f"an override is section.key=value, got {override!r}"))
        return
    read = read_yaml(text)
    problems.extend(
        Problem(join_path(dotted, found.path) if found.path else dotted, found.text) for found in read.problems
    )
    value = read.value
    for key in reversed(keys):
        value = {key: value}
    settle_paths(value, Path.cwd(), problems)
    _merge(tree, value)


def _merge(tree: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = value


def _validate(tree: dict[str, Any], problems: list[Problem]) -> Manifest | None:
    reported = {problem.path for problem in problems}
    try:
        manifest = Manifest.model_validate(tree)
    except ValidationError as error:
        found = [_problem(details) for details in error.errors()]
        problems.extend(problem for problem in found if problem.path not in reported)
        return None
    problems.extend(_contradictions(manifest))
    return None if problems else manifest


def _contradictions(manifest: Manifest) -> Iterator[Problem]:
    """What each key allows and all of them together do not."""
    yield from environment_problems(manifest.environment)
    yield from packages_problems(manifest.environment)
    train = manifest.model.train
    if train != "lora" and manifest.model.lora != LoraSection():
        yield Problem("model.lora", f"only with model.train: lora, got train: {train}")
    yield from _placement_problems(manifest)
    yield from _training_problems(manifest)
    yield from _algorithm_problems(manifest)
    correction = list(asynchronous_problems(manifest))
    yield from correction
    try:
        manifest.algorithm.settings()
    except ConfigurationError as error:
        if not correction:
            yield Problem("algorithm", str(error))


def _placement_problems(manifest: Manifest) -> Iterator[Problem]:
    rollout = manifest.rollout
    if rollout.workers is not None and rollout.backend == "local":
        yield Problem("rollout.workers", "only with rollout.backend: process or ray, got local")
    if rollout.ray_address is not None and rollout.backend != "ray":
        yield Problem("rollout.ray_address", f"only with rollout.backend: ray, got {rollout.backend}")
    if manifest.environment.env_url is not None and rollout.backend != "local":
        yield Problem("rollout.backend", "must be local with env_url: the sessions live on that server already")


def _training_problems(manifest: Manifest) -> Iterator[Problem]:
    training = manifest.training
    if training.epochs is not None and manifest.environment.env_type != "dataset":
        yield Problem("training.epochs", "only with env_type: dataset; a run over rollouts has training.steps")
    if training.schedule == "constant" and training.schedule_end:
        yield Problem("training.schedule_end", "only with training.schedule: linear or cosine, got constant")
    if len(set(training.loggers)) < len(training.loggers):
        yield Problem("training.loggers", f"names one twice: {', '.join(training.loggers)}")


def _algorithm_problems(manifest: Manifest) -> Iterator[Problem]:
    """The algorithm is of the environment's kind, and nothing is said of episodes where none is played."""
    environment, name = manifest.environment, manifest.algorithm.name
    of_rows = {wanted: objective for objective, wanted in OF_OBJECTIVE.items()}
    if environment.env_type == "rollout":
        if name in of_rows:
            yield Problem(
                "algorithm.name", f"{name} learns from rows: env_type: dataset with objective: {of_rows[name]}"
            )
        return
    if environment.objective is not None and name != OF_OBJECTIVE[environment.objective]:
        wanted = OF_OBJECTIVE[environment.objective]
        yield Problem("algorithm.name", f"{wanted} is what learns with objective: {environment.objective}, got {name}")
    if manifest.rollout != RolloutSection():
        yield Problem("rollout", "only with env_type: rollout; nothing is sampled with env_type: dataset")


def _problem(details: ErrorDetails) -> Problem:
    path = ""
    for part in details["loc"]:
        kind = part in ("str", "list[str]", "[key]") or (path == "algorithm" and part in ALGORITHM_SECTIONS)
        path = path if kind else join_path(path, part)
    return Problem(path, _text(path, details))


def _text(path: str, details: ErrorDetails) -> str:
    given = details.get("input")
    limits: Mapping[str, Any] = details.get("ctx", {})
    said = _SAID.get((path, given)) if isinstance(given, str) else None
    if said:
        return said
    match details["type"]:
        case "missing":
            return "is required and not given"
        case "literal_error":
            allowed = limits["expected"].replace(" or ", ", ")
            wanted = f"must be one of {allowed}" if "," in allowed else f"must be {allowed}"
        case "value_error":
            wanted = str(limits["error"])
        case kind if kind in _WANTED:
            wanted = f"must be {_WANTED[kind]}"
        case _:
            bounds = [f"{_SYMBOLS[name]} {limit:g}" for name, limit in limits.items() if name in _SYMBOLS]
            wanted = f"must be {' and '.join(bounds)}" if bounds else details["msg"]
    return f"{wanted}, got {_shown(given, details['type'])}"


def _shown(given: object, kind: str) -> str:
    if isinstance(given, bool):
        return "true" if given else "false"
    return f"the text {given!r}" if isinstance(given, str) and kind in _WANTED else repr(given)


def _error(source: str, problems: Sequence[Problem]) -> ManifestError:
    if len(problems) == 1:
        return ManifestError(f"{source}: {problems[0]}")
    return ManifestError("\n  ".join([f"{source}: {len(problems)} problems", *map(str, problems)]))
