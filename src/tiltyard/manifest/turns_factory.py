"""A manifest's environment as something that makes it, here or in a worker that it was sent to."""

import threading
from collections.abc import Callable
from typing import Any

from tiltyard.envs.turns import Turns
from tiltyard.errors import ConfigurationError, ManifestError
from tiltyard.manifest.probing import env_factory
from tiltyard.manifest.sections import EnvironmentSection
from tiltyard.rollout.entrypoint import load_entrypoint, load_processor, text_turns

_LOADING = threading.Lock()
"""Held while rows or a module are loaded: the environments of a worker are made on many threads."""

_Parts = tuple[Callable[[], Any], Callable[[Any], str] | None]


class TurnsFactory:
    """Makes a new environment at each call, as turns. What is loaded for that is loaded once in each process."""

    def __init__(
        self, section: EnvironmentSection, max_observation_chars: int, make_env: Callable[[], Any] | None = None
    ) -> None:
        """Load what the environments are made of.

        Args:
            section: The manifest's.
            max_observation_chars: The most characters of one observation.
            make_env: Makes the environment, in place of what the section names.

        Raises:
            ManifestError: The entrypoint, the rows, the rubric or the observation processor cannot be loaded.
            MissingExtraError: The `datasets` extra, which the rows need, is not installed.
        """
        self._section = section
        self._max_chars = max_observation_chars
        self._given = make_env
        self._loaded: _Parts | None = self._load()

    @property
    def own_process(self) -> bool:
        """Whether each environment asks for a process of its own: `own_process = True` on what makes it."""
        entrypoint = self._section.entrypoint
        made_by = self._given or (None if entrypoint is None else load_entrypoint(entrypoint))
        return getattr(made_by, "own_process", False) is True

    def __call__(self) -> Turns:
        """A new environment."""
        with _LOADING:
            if self._loaded is None:
                self._loaded = self._load()
        make_env, processor = self._loaded
        return text_turns(make_env(), self._section.observation_field, processor, self._max_chars)

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to a worker: what to load, and nothing that was loaded."""
        return {**self.__dict__, "_loaded": None}

    def _load(self) -> _Parts:
        section = self._section
        make_env = self._given or env_factory(section)
        try:
            return make_env, load_processor(section.observation_processor)
        except ConfigurationError as error:
            raise ManifestError(f"environment.observation_processor: {error}") from error
