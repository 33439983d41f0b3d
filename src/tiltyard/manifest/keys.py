"""The keys of a manifest: which are known, and what to say about those that are not."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from tiltyard.manifest.sections import Manifest
from tiltyard.manifest.yaml_text import Problem, join_path

ALIASES: Mapping[str, str] = {"algorithm.action_granularity": "advantage_granularity"}
"""Other spellings that are accepted, by dotted path."""

LATER: Mapping[str, str] = {
    **{
        f"environment.{key}": "this version plays an `entrypoint` or an `env_url`"
        for key in (
            *("dataset", "name", "columns", "rubric_file_path", "reward_file_path", "rubric_name", "reward_fn_name"),
            *("prompt_template", "train_test_split", "env_packages", "objective", "response_column"),
        )
    },
    "environment.env_packages": "install the environment's package yourself and leave the key out",
}
"""Keys of the full manifest that this version does not have yet, and what to do instead."""

RENAMED: Mapping[str, str] = {
    "batch_size_per_agent": "training.batch_size",
    "beta": "algorithm.kl_coef",
    "epsilon": "algorithm.clip_low",
    "lr": "training.learning_rate",
    "max_completion_length": "rollout.max_tokens_per_turn",
    "max_new_tokens": "rollout.max_tokens_per_turn",
    "max_output_tokens": "rollout.max_tokens_per_turn",
    "max_steps": "training.steps",
    "model_name_or_path": "model.name",
    "num_generations": "algorithm.group_size",
    "pretrained_model_name_or_path": "model.name",
    "step_timeout_s": "environment.request_timeout_s",
    "system_prompt": "environment.env_config.system_prompt",
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
        section = section_of(model, name)
        if section:
            yield from leaf_paths(section, join_path(path, name))
        else:
            yield join_path(path, name)


def section_of(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the model of a key that is itself a section, None for a key that holds a value."""
    annotation = model.model_fields[name].annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


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
        elif section := section_of(model, name):
            if isinstance(value, Mapping):
                settled[name] = _settle(value, section, here, problems)
            else:
                keys = ", ".join(section.model_fields)
                problems.append(Problem(here, f"must hold keys ({keys}), got {value!r}"))
        else:
            settled[name] = value
    return settled


def _unknown(key: str, here: str, model: type[BaseModel], path: str) -> str:
    if here in LATER:
        return f"not in this version yet; {LATER[here]}"
    bare = key.lower().replace("-", "_")
    if bare in model.model_fields:
        return f"unknown key; did you mean {join_path(path, bare)}?"
    if bare in RENAMED:
        return f"unknown key; it is called {RENAMED[bare]} here"
    elsewhere = [leaf for leaf in leaf_paths() if leaf.rpartition(".")[2] == bare]
    if elsewhere:
        return f"does not belong here; it is {' or '.join(elsewhere)}"
    known = f"known here: {', '.join(model.model_fields)} (keys that start with x- are yours)"
    nearest = _nearest(bare, model, path)
    return f"unknown key; did you mean {nearest}?" if nearest else f"unknown key; {known}"


def _nearest(bare: str, model: type[BaseModel], path: str) -> str | None:
    """Return the dotted path of the most similar key, one of the same section before one of another."""
    here = {name: join_path(path, name) for name in model.model_fields}
    anywhere = {leaf.rpartition(".")[2]: leaf for leaf in leaf_paths()}
    for names, cutoff in ((here, 0.7), (anywhere, 0.8)):
        if found := difflib.get_close_matches(bare, list(names), n=1, cutoff=cutoff):
            return names[found[0]]
    return None
