"""The keys of a manifest: which are known, and what to say about those that are not."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel

from tiltyard.manifest.algorithms import ALGORITHM_SECTIONS
from tiltyard.manifest.sections import Manifest
from tiltyard.manifest.yaml_text import Problem, join_path

ALIASES: Mapping[str, str] = {
    "algorithm.action_granularity": "advantage_granularity",
    "environment.name": "dataset",
    "environment.reward_file_path": "rubric_file_path",
    "environment.reward_fn_name": "rubric_name",
}
"""Other spellings that are accepted, by dotted path."""

BITS = 63
LARGEST = 2**BITS - 1
"""The largest whole number that torch takes, as a seed or for anything else."""

RENAMED: Mapping[str, str] = {
    "batch_size_per_agent": "training.batch_size",
    "beta": "algorithm.kl_coef",
    "cliprange_value": "algorithm.value_clip",
    "epsilon": "algorithm.clip_low",
    "epsilon_high": "algorithm.clip_high",
    "gamma": "algorithm.discount",
    "lam": "algorithm.gae_lambda",
    "lr": "training.learning_rate",
    "max_completion_length": "rollout.max_tokens_per_turn",
    "max_new_tokens": "rollout.max_tokens_per_turn",
    "max_output_tokens": "rollout.max_tokens_per_turn",
    "max_steps": "training.steps",
    "model_name_or_path": "model.name",
    "num_generations": "algorithm.group_size",
    "num_iterations": "algorithm.epochs",
    "pretrained_model_name_or_path": "model.name",
    "step_timeout_s": "environment.request_timeout_s",
    "system_prompt": "environment.env_config.system_prompt",
    "vf_coef": "algorithm.value_coef",
}
"""What other projects call a key, by its bare name."""


def settle_keys(tree: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Return the tree with known keys only, aliases spelled out and valueless keys left out.

    What was left out for another reason is added to `problems`.
    """
    return _settle(tree, Manifest, "", problems)


def leaf_paths(model: type[BaseModel] = Manifest, path: str = "") -> Iterator[str]:
    """Give the dotted path of every key that holds a value."""
    for name in model.model_fields:
        here, sections = join_path(path, name), sections_of(model, name)
        if sections:
            yield from dict.fromkeys(leaf for section in sections for leaf in leaf_paths(section, here))
        else:
            yield here


def sections_of(model: type[BaseModel], name: str) -> tuple[type[BaseModel], ...]:
    """Return the models of a key that is itself a section; empty for a key that holds a value.

    There are several where a `name` in the section tells which one it is (`algorithm`); the first is the default.
    """
    annotation = model.model_fields[name].annotation
    kinds = [get_args(kind)[0] for kind in get_args(annotation) if get_origin(kind) is Annotated] or [annotation]
    return tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))


def _settle(tree: Mapping[str, Any], model: type[BaseModel], path: str, problems: list[Problem]) -> dict[str, Any]:
    settled: dict[str, Any] = {}
    for key, value in tree.items():
        if not isinstance(key, str):  # reported where the YAML was read
            continue
        here = join_path(path, key)
        name = ALIASES.get(here, key)
        if key.startswith("x-") or (value is None and name in model.model_fields):
            continue
        if name not in model.model_fields:
            problems.append(Problem(here, _unknown(key, here, model, path)))
        elif name != key and tree.get(name) is not None:
            problems.append(Problem(here, f"is another spelling of {name}, which is given as well; keep one"))
        elif sections := sections_of(model, name):
            if not isinstance(value, Mapping):
                keys = _keys(sections)
                problems.append(Problem(here, f"must hold keys ({keys}), got {value!r}"))
            elif section := _named(value, sections, here, problems):
                settled[name] = _settle(value, section, here, problems)
        elif isinstance(value, int) and not -LARGEST <= value <= LARGEST:
            if here not in {problem.path for problem in problems}:  # where TOML was read, it may be reported
                problems.append(Problem(here, f"must be a whole number of at most {BITS} bits, got {value}"))
        else:
            settled[name] = value
    return settled


def _keys(sections: tuple[type[BaseModel], ...]) -> str:
    if len(sections) == 1:
        return ", ".join(sections[0].model_fields)
    return f"name and those of one algorithm: {', '.join(s.model_fields['name'].default for s in sections)}"


def _named(
    value: Mapping[Any, Any], sections: tuple[type[BaseModel], ...], here: str, problems: list[Problem]
) -> type[BaseModel] | None:
    """Return the one of several sections that the value's `name` picks; None for an unknown name, which is reported."""
    if len(sections) == 1:
        return sections[0]
    by_name = {section.model_fields["name"].default: section for section in sections}
    name = value.get("name")
    if name is None:
        return sections[0]
    if not isinstance(name, str) or name not in by_name:
        known = ", ".join(map(repr, by_name))
        problems.append(Problem(join_path(here, "name"), f"must be one of {known}, got {name!r}"))
        return None
    return by_name[name]


def _unknown(key: str, here: str, model: type[BaseModel], path: str) -> str:
    bare = key.lower().replace("-", "_")
    if bare in model.model_fields:
        return f"unknown key; did you mean {join_path(path, bare)}?"
    if bare in RENAMED:
        return f"unknown key; it is called {RENAMED[bare]} here"
    if path == "algorithm" and (owners := [name for name, s in ALGORITHM_SECTIONS.items() if bare in s.model_fields]):
        return f"is a key of {' and '.join(owners)}, and this is {model.model_fields['name'].default}"
    own, paths = _own(model, path), [*_inner_sections(), *leaf_paths()]
    elsewhere = [found for found in paths if found.rpartition(".")[2] == bare]
    meant = _with_words(bare, own)
    if elsewhere and not meant:
        return f"does not belong here; it is {' or '.join(elsewhere)}"
    meant += [found for found in paths if bare in _run_together(found)]
    if meant or (meant := _nearest(bare, own)):
        return f"unknown key; did you mean {' or '.join(dict.fromkeys(meant))}?"
    return f"unknown key; known here: {', '.join(model.model_fields)} (keys that start with x- are yours)"


def _own(model: type[BaseModel], path: str) -> dict[str, str]:
    """The dotted paths of a section's keys and of their other spellings, by their bare names."""
    spellings = [alias.rpartition(".")[2] for alias in ALIASES if alias.rpartition(".")[0] == path]
    return {name: join_path(path, name) for name in (*model.model_fields, *spellings)}


def _inner_sections(model: type[BaseModel] = Manifest, path: str = "") -> Iterator[str]:
    """Give the dotted path of every section within a section."""
    for name in model.model_fields:
        here = join_path(path, name)
        for section in sections_of(model, name)[:1]:
            if path:
                yield here
            yield from _inner_sections(section, here)


def _run_together(path: str) -> Iterator[str]:
    """How a dotted path is written as one word: training.eval.tasks as eval_tasks, for one."""
    parts = path.split(".")
    return ("_".join(parts[start:]) for start in range(len(parts)))


def _with_words(bare: str, own: Mapping[str, str]) -> list[str]:
    """The one key of the section that has all words of another; none where there are several."""
    words = set(bare.split("_"))
    found = [path for name, path in own.items() if words <= set(name.split("_"))]
    return found if len(found) == 1 else []


def _nearest(bare: str, own: Mapping[str, str]) -> list[str]:
    """The dotted path of the most similar key, one of the same section before one of another; none if none is."""
    anywhere = {leaf.rpartition(".")[2]: leaf for leaf in leaf_paths()}
    for names, cutoff in ((own, 0.7), (anywhere, 0.8)):
        if found := difflib.get_close_matches(bare, list(names), n=1, cutoff=cutoff):
            return [names[found[0]]]
    return []
