"""`environment` of a manifest: what is played, or what is trained on, and which keys go with which."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from tiltyard.envs.openenv.address import ws_url
from tiltyard.errors import ConfigurationError
from tiltyard.manifest.section import Section
from tiltyard.manifest.yaml_text import Problem
from tiltyard.rows.template import message_of


class EnvironmentSection(Section):
    """`environment`: what is played, or what is trained on."""

    env_type: Literal["rollout", "dataset"] = Field(
        description="`rollout`: the model generates. `dataset`: it learns from answers that are there. Never inferred."
    )
    dataset: str | None = Field(
        default=None,
        description="Rows: a Parquet, JSONL, JSON or CSV file, a folder of them, or a hub id. Also spelt `name`.",
    )
    dataset_split: str | None = Field(
        default=None, description="Which split of a folder or hub id has the rows; not given, `train`."
    )
    columns: dict[str, str] = Field(default={}, description="New names of columns, all at once: `nums: question`.")
    rubric_file_path: str | None = Field(
        default=None, description="The Python file that scores the answers to a `dataset`. Also `reward_file_path`."
    )
    rubric_name: str | None = Field(
        default=None, description="The function or rubric in it; not given, its only one. Also `reward_fn_name`."
    )
    prompt_template: dict[str, str] = Field(
        default={}, description="The prompt's messages, `system_0`, `user_1`, …, with columns in braces."
    )
    train_test_split: float = Field(
        default=0.9, gt=0, le=1, description="The share of the rows that is trained on; 1 holds out none."
    )
    objective: Literal["sft", "preference"] | None = Field(
        default=None, description="With `env_type: dataset`, required: what is learned from the rows."
    )
    response_column: str = Field(
        default="response", min_length=1, description="With `objective: sft`: the column of the answers."
    )
    entrypoint: str | None = Field(
        default=None, description="`module:attr` or `path.py:attr`: the environment's class or a function."
    )
    env_config: dict[str, Any] = Field(default={}, description="Keyword arguments of the entrypoint.")
    env_packages: dict[Literal["uv", "pip"], list[str]] = Field(
        default={},
        description="`{uv: [name, …]}`: installed with uv, if the entrypoint cannot be imported. `pip` means the same.",
    )
    env_url: str | None = Field(
        default=None, description="A running OpenEnv server, in place of an entrypoint; with `max_turns`."
    )
    mcp_tool: str | None = Field(
        default=None, description="With `env_url`: the MCP tool that the model's text is given to."
    )
    action_field: str = Field(
        default="message", min_length=1, description="With `env_url`: the field of an action that the text goes into."
    )
    observation_field: str | None = Field(
        default=None, description="The field of an observation that the model sees; not given, what is informative."
    )
    observation_processor: str | None = Field(
        default=None, description="`module:fn` or `path.py:fn`: makes the text of an observation."
    )
    max_turns: int | None = Field(
        default=None,
        ge=1,
        description="Turns of one episode; not given, 1 with a `dataset`, else the environment is asked; no server is.",
    )
    max_reward: float | None = Field(
        default=None, description="The highest reward of an episode: what counts as success."
    )
    chat_template_kwargs: dict[str, Any] = Field(default={}, description="Further arguments of the chat template.")
    request_timeout_s: float = Field(default=300.0, ge=0, description="Seconds of one reset or step; 0 sets no bound.")

    @property
    def source(self) -> str:
        """What names the environment: its entrypoint, its URL or its rows."""
        return self.entrypoint or self.env_url or self.dataset or ""


_ROWS = ("dataset_split", "columns", "prompt_template", "train_test_split")
_SCORE = ("rubric_file_path", "rubric_name")
_SHOWN = ("observation_field", "observation_processor")
_SERVER = ("mcp_tool", "action_field")
_PLAYED = ("max_turns", "max_reward", "request_timeout_s")
_LEARNED = ("objective", "response_column")

_RENDERED_WITH = {"conversation", "messages", "tools", "add_generation_prompt", "tokenize"}
"""What each render of a chat template is given in any case."""

_GOES_WITH: Mapping[str, tuple[str, ...]] = {
    "dataset and a rubric_file_path": (*_ROWS, *_SCORE, *_PLAYED),
    "entrypoint": ("env_config", "env_packages", *_SHOWN, *_PLAYED),
    "env_url": (*_SERVER, *_SHOWN, *_PLAYED),
    "env_type: dataset": (*_ROWS, *_LEARNED),
}
"""The keys that each kind of environment has; those of no kind here go with all."""

_SOURCES = {"dataset": "dataset and a rubric_file_path", "entrypoint": "entrypoint", "env_url": "env_url"}


def environment_problems(section: EnvironmentSection) -> Iterator[Problem]:
    """What each key allows and all of them together do not: one source, and what goes with it."""
    if section.env_type == "dataset":
        yield from _learned(section)
        yield from _misplaced(section, "env_type: dataset")
    else:
        yield from _played(section)
    yield from _template(section)
    yield from _rendering(section)


def _learned(section: EnvironmentSection) -> Iterator[Problem]:
    for name in ("dataset", "objective"):
        if getattr(section, name) is None:
            options = " (sft or preference)" if name == "objective" else ""
            yield Problem(f"environment.{name}", f"is required with env_type: dataset and not given{options}")
    for name in ("entrypoint", "env_url"):
        if getattr(section, name) is not None:
            yield Problem(f"environment.{name}", "only with env_type: rollout; the rows of env_type: dataset are given")
    if section.objective == "preference" and not _is_default(section, "response_column"):
        yield Problem("environment.response_column", "only with objective: sft; preference has chosen and rejected")


def _played(section: EnvironmentSection) -> Iterator[Problem]:
    given = [name for name in _SOURCES if getattr(section, name) is not None]
    if not given:
        yield Problem("environment.entrypoint", "is required and not given, unless env_url or dataset is")
    elif len(given) > 1:
        both = " and ".join(f"{'an' if name[0] == 'e' else 'a'} {name}" for name in given)
        yield Problem("environment", f"has {both}; keep one")
    elif section.dataset is not None and section.rubric_file_path is None:
        yield Problem("environment.rubric_file_path", "is required with dataset: the file that scores the answers")
    if section.dataset is not None and section.max_reward is None and (section.max_turns or 1) > 1:
        why = "an answer is asked for again until it earns that much"
        yield Problem("environment.max_reward", f"is required with a dataset and max_turns {section.max_turns}: {why}")
    if section.env_url is not None:
        if section.max_turns is None:
            yield Problem("environment.max_turns", "is required with env_url: a server is not asked for it")
        try:
            ws_url(section.env_url)
        except ConfigurationError as error:
            yield Problem("environment.env_url", str(error))
    if len(given) == 1:
        yield from _misplaced(section, _SOURCES[given[0]])


def _misplaced(section: EnvironmentSection, kind: str) -> Iterator[Problem]:
    """The keys that were given and belong to another kind of environment."""
    known = {name for names in _GOES_WITH.values() for name in names}
    for name in EnvironmentSection.model_fields:
        if name not in known or name in _GOES_WITH[kind] or _is_default(section, name):
            continue
        homes = " or ".join(home for home, names in _GOES_WITH.items() if name in names)
        yield Problem(f"environment.{name}", f"only with {homes}, not with {kind}")


def _template(section: EnvironmentSection) -> Iterator[Problem]:
    for key, text in section.prompt_template.items():
        try:
            message_of(key, text)
        except ConfigurationError as error:
            yield Problem(f"environment.prompt_template.{key}", str(error))


def _rendering(section: EnvironmentSection) -> Iterator[Problem]:
    for name in sorted(section.chat_template_kwargs.keys() & _RENDERED_WITH):
        why = "is not for a manifest to say: it follows from the conversation; here is what a template has of its own"
        yield Problem(f"environment.chat_template_kwargs.{name}", f"{why}, such as enable_thinking")


def _is_default(section: EnvironmentSection, name: str) -> bool:
    return getattr(section, name) == EnvironmentSection.model_fields[name].default
