"""The environment of a manifest's `dataset` and `rubric_file_path`."""

from collections.abc import Callable
from pathlib import Path

from tiltyard._boundary import guarded
from tiltyard.envs.qa import QADatasetEnv
from tiltyard.errors import ConfigurationError, EnvError, ManifestError
from tiltyard.manifest.environment import EnvironmentSection
from tiltyard.rewards.rubric import Rubric
from tiltyard.rollout.rubric_file import load_rubric
from tiltyard.rows import Rows, RowSplit, load_rows, split_rows


def rows_of(section: EnvironmentSection) -> Rows:
    """The rows of a manifest, their columns named as it says.

    Raises:
        ManifestError: They cannot be loaded, or a column is not there.
        MissingExtraError: The `datasets` extra, which they need, is not installed.
    """
    try:
        rows = load_rows(section.dataset or "", split=section.dataset_split)
    except ConfigurationError as error:
        raise ManifestError(f"environment.dataset: {error}") from error
    try:
        return rows.renamed(section.columns)
    except ConfigurationError as error:
        raise ManifestError(f"environment.columns: {error}") from error


def split_of(section: EnvironmentSection) -> RowSplit:
    """The rows to train on and those that are held out: the same division in every run.

    Raises:
        ManifestError: The rows cannot be loaded or divided.
    """
    rows = rows_of(section)
    try:
        return split_rows(rows, section.train_test_split)
    except ConfigurationError as error:
        raise ManifestError(f"environment.train_test_split: {error}") from error


def rows_env_factory(section: EnvironmentSection) -> Callable[[], QADatasetEnv]:
    """Load rows and rubric once; return what makes an environment over them at each call.

    Raises:
        ManifestError: The rows or the rubric cannot be loaded, or do not go together.
    """
    split, rubric = split_of(section), _rubric(section)

    def make() -> QADatasetEnv:
        return QADatasetEnv(
            split.train,
            rubric,
            prompt_template=section.prompt_template,
            held_out=split.held_out,
            max_turns=section.max_turns or 1,
            max_reward=section.max_reward,
        )

    try:
        rubric.check(split.train.columns)
    except ConfigurationError as error:
        raise ManifestError(f"environment.rubric_file_path: {error}") from error
    try:
        make()
    except ConfigurationError as error:
        key = "prompt_template" if section.prompt_template else "dataset"
        raise ManifestError(f"environment.{key}: {error}") from error
    return make


def _rubric(section: EnvironmentSection) -> Rubric:
    path = Path(section.rubric_file_path or "")
    try:
        return guarded(f"importing {path}", EnvError, load_rubric, path, section.rubric_name)
    except (ConfigurationError, EnvError) as error:
        key = "rubric_name" if section.rubric_name and isinstance(error, ConfigurationError) else "rubric_file_path"
        raise ManifestError(f"environment.{key}: {error}") from error
