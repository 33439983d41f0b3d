"""Which of the tools that there are a trajectory shows to the model."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tiltyard._boundary import shown
from tiltyard.errors import ConfigurationError
from tiltyard.tools.schema import tool_name


def shown_names(row: Mapping[str, Any], number: int) -> list[str] | None:
    """The names of the tools that a row shows; None where it leaves that to the environment.

    Raises:
        ConfigurationError: It shows what is no tool.
    """
    tools = row.get("tools")
    if tools is None:
        return None
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Collection):
        raise ConfigurationError(
            f"trajectory {number}: tools must be a list of tool schemas or of names, got {shown(tools)}"
        )
    names = []
    for schema in tools:
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
