"""Datasets of a hub, and those that were saved to disk, by the library `datasets`."""

import re
from pathlib import Path
from typing import Any

from tiltyard._boundary import guarded
from tiltyard._optional import require
from tiltyard.errors import ConfigurationError, EnvError
from tiltyard.rows.table import RowSource

_PARTS = re.compile(r"(?P<path>.*?)(?P<config>:[\w.-]+)?(?P<revision>@[\w./-]+)?")


class Saved:
    """Rows of a `datasets.Dataset`, which keeps them on disk."""

    def __init__(self, dataset: Any, name: str) -> None:
        self._dataset = dataset
        self._name = name
        self.columns: tuple[str, ...] = tuple(dataset.column_names)

    def __len__(self) -> int:
        return len(self._dataset)

    def row(self, index: int) -> dict[str, Any]:
        """See `RowSource`."""
        return dict(self._dataset[index])

    def fingerprint(self) -> str:
        """See `RowSource`; the library's own, which is of the files' content and of what was done to them."""
        return f"{self._name} {len(self)} {self._dataset._fingerprint}"  # it has no public name


def load_hub(name: str, split: str | None = None) -> RowSource:
    """A dataset of a hub: `owner/name`, `owner/name:config`, `owner/name@revision`. No code of it is run.

    Raises:
        ConfigurationError: It cannot be loaded, or has no such split; the cause is chained.
        MissingExtraError: The `datasets` extra is not installed.
    """
    datasets = require("datasets", "datasets")
    found = _PARTS.fullmatch(name)
    path, config, revision = found.group("path", "config", "revision") if found else (name, None, None)
    try:
        loaded = guarded(
            f"loading the dataset {name!r}",
            EnvError,
            datasets.load_dataset,
            path,
            name=config and config[1:],
            revision=revision and revision[1:],
        )
    except EnvError as error:
        raise ConfigurationError(
            f"{error}. It is the id of a dataset on a hub; a file's path begins with ./ or ends with its kind"
        ) from error.__cause__
    return Saved(_split(loaded, split, name), name)


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()


def load_saved(folder: Path, split: str | None = None) -> RowSource:
    """What `save_to_disk` wrote.

    Raises:
        ConfigurationError: It cannot be loaded, or has no such split.
        MissingExtraError: The `datasets` extra is not installed.
    """
    datasets = require("datasets", "datasets")
    try:
        loaded = guarded(f"loading {folder}", EnvError, datasets.load_from_disk, str(folder))
    except EnvError as error:
        raise ConfigurationError(str(error)) from error.__cause__
    return Saved(_split(loaded, split, str(folder)), folder.name)


def _split(loaded: Any, split: str | None, name: str) -> Any:
    """One `Dataset` of what was loaded: the split that was asked for, else `train`, else the only one."""
    if not isinstance(loaded, dict):
        if split is not None:
            raise ConfigurationError(f"split {split!r} was asked for, but {name} is one split alone; leave it out")
        return loaded
    known = ", ".join(loaded)
    if split is None:
        if "train" not in loaded and len(loaded) > 1:
            raise ConfigurationError(f"{name} has no split 'train'; name one of its splits: {known}")
        split = "train" if "train" in loaded else next(iter(loaded))
    if split not in loaded:
        raise ConfigurationError(f"{name} has no split {split!r}; its splits are: {known}")
    return loaded[split]
