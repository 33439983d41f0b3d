"""Which of the tools that there are a trajectory shows to the model."""

from collections.abc import Mapping, Sequence
from typing import Any

from tiltyard.errors import ConfigurationError
from tiltyard.tools.schema import tool_name


def shown_names(row: Mapping[str, Any], number: int) -> list[str] | None:
    """The names of the tools that a row shows; None where it leaves that to the environment.

    Raises:
        ConfigurationError: It shows what is no tool.
    """
    if row.get("tools") is None:
        return None
    names = []
    for schema in row["tools"]:
        try:
            names.append(schema if isinstance(schema, str) else tool_name(schema))
        except ConfigurationError as error:
            raise ConfigurationError(f"trajectory {number}: {error}") from error
    return names


def unknown_tools(unknown: Sequence[str], known: Sequence[str]) -> str:
    """What to say of tools that a trajectory shows and nobody can run."""
    return (
        f"it shows the tools {list(unknown)}, which nobody can run; there are: {', '.join(known) or 'none'}. Leave "
        "'tools' out to show all, or give their names as the tool manager has them"
    )
