"""Templates as a command line and its file name them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tiltyard.errors import ConfigurationError
from tiltyard.sandbox.box_model import BoxLimits, Template


class _Limits(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    memory_mib: int | None = None
    processes: int | None = None
    cpus: float | None = None
    disk_mib: int | None = None
    open_files: int | None = None


class _Template(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    root: str | None = None
    setup: list[str] = Field(default_factory=list)
    envs: dict[str, str] = Field(default_factory=dict)
    limits: _Limits = Field(default_factory=_Limits)
    network: bool | None = None


def command_templates(
    named: Mapping[str, Any], folder: Path, limits: Mapping[str, Any], *, network: bool
) -> list[Template]:
    """The templates that a command line names, `base` among them.

    Args:
        named: Each template's `root`, `setup`, `envs`, `limits` and `network`, all optional; None is none of them.
        folder: What relative roots are relative to.
        limits: What a template has that says nothing else.
        network: As `limits`.

    Raises:
        ConfigurationError: A key or a value is wrong.
    """
    made = []
    for name, value in {"base": None, **named}.items():
        try:
            read = _Template.model_validate({} if value is None else value)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'the value'}: {e['msg']}" for e in error.errors())
            raise ConfigurationError(f"template {name!r}: {wrong}") from error
        own = {key: value for key, value in read.limits.model_dump().items() if value is not None}
        made.append(
            Template(
                name=name,
                root=None if read.root is None else folder / read.root,
                setup=tuple(read.setup),
                envs=read.envs,
                limits=BoxLimits(**{**limits, **own}),
                network=network if read.network is None else read.network,
            )
        )
    return made
