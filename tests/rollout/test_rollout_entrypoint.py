"""Entrypoints, and the environment in this process."""

import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from tiltyard.errors import ConfigurationError, EpisodeOverError
from tiltyard.rollout.entrypoint import build_env, load_entrypoint, max_turns_of
from tiltyard.rollout.in_process import InProcessEnvClient

GUESS = """
class GuessEnv:
    def __init__(self, target=7):
        self.target = target
    def reset(self, seed=None):
        return "Guess.", {}
    def step(self, action):
        return "x", 0.0, True, False, {}

class Broken:
    def __init__(self):
        raise TypeError("inside")

envs = [GuessEnv]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "guess_env.py").write_text(GUESS)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("tiltyard_entrypoint_")]:
        del sys.modules[name]


def test_a_file_is_found_relative_to_the_folder_that_is_given(folder):
    """Files are relative to the manifest that names them."""
    assert load_entrypoint("guess_env.py:GuessEnv", folder).__name__ == "GuessEnv"


def test_one_file_is_one_module(folder):
    """Naming a file twice gives the same class."""
    first = load_entrypoint("guess_env.py:GuessEnv", folder)
    assert load_entrypoint(f"{folder}/guess_env.py:GuessEnv") is first


def test_an_attribute_of_a_module_may_have_dots():
    """`module:Class.make` names a class method."""
    assert load_entrypoint("collections:OrderedDict.fromkeys")("ab") == {"a": None, "b": None}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("guess_env.py:GessEnv", r"has no 'GessEnv'; did you mean 'GuessEnv'"),
        ("gues_env.py:GuessEnv", r"a file that is not there: .*gues_env\.py; did you mean 'guess_env\.py'"),
        ("no_such_module_of_ours:Env", r"'no_such_module_of_ours' is not installed"),
        ("collections:Ordereddict", r"did you mean 'OrderedDict'"),
        ("collections", r"is 'module:attr' or 'path\.py:attr'"),
        ("collections:", r"is 'module:attr' or 'path\.py:attr'"),
        ("ftp://host/env", r"is 'module:attr' or 'path\.py:attr'"),
        ("http://localhost:8000", r"got the URL .*env_url"),
        ("wss://host/ws", r"got the URL .*env_url"),
    ],
)
def test_a_spec_that_names_nothing_says_what_was_meant(folder, spec, message):
    """The error names the file, module or attribute, and near names."""
    with pytest.raises(ConfigurationError, match=message):
        load_entrypoint(spec, folder)


def test_what_a_module_raises_while_it_is_imported_escapes(folder):
    """A broken import inside the user's file is shown as it is, and the file can be repaired and loaded again."""
    (folder / "bad.py").write_text("import no_such_thing_at_all")
    with pytest.raises(ModuleNotFoundError, match="no_such_thing_at_all"):
        load_entrypoint("bad.py:x", folder)
    (folder / "bad.py").write_text("x = 1")
    assert load_entrypoint("bad.py:x", folder) == 1


def test_the_system_prompt_is_set_on_the_environment_and_not_passed(folder):
    """A constructor need not know it."""
    env = build_env("guess_env.py:GuessEnv", {"target": 3, "system_prompt": "Play."}, folder)
    assert (env.target, env.system_prompt) == (3, "Play.")


def test_arguments_that_do_not_fit_are_named(folder):
    """A typo in env_config is a configuration error."""
    with pytest.raises(ConfigurationError, match=r"env_config does not fit .*targte"):
        build_env("guess_env.py:GuessEnv", {"targte": 3}, folder)
    with pytest.raises(ConfigurationError, match=r"env_config must be a dict of keyword arguments, got \[3\]"):
        build_env("guess_env.py:GuessEnv", [3], folder)


def test_a_type_error_inside_the_constructor_is_the_environments_own(folder):
    """It is not mistaken for an argument that does not fit."""
    with pytest.raises(TypeError, match="inside"):
        build_env("guess_env.py:Broken", None, folder)


def test_an_entrypoint_must_make_environments(folder):
    """A ready object cannot give each episode its own."""
    with pytest.raises(ConfigurationError, match="is a list"):
        build_env("guess_env.py:envs", None, folder)


def test_the_turn_budget_is_read_off_the_environment():
    """`max_turns` may be left out where the environment states it."""
    assert max_turns_of(SimpleNamespace(max_turns=4), "m:E") == 4


@pytest.mark.parametrize("env", [SimpleNamespace(), SimpleNamespace(max_turns=0), SimpleNamespace(max_turns="3")])
def test_a_turn_budget_that_is_not_stated_must_be_given(env):
    """It is never guessed."""
    with pytest.raises(ConfigurationError, match="give max_turns >= 1"):
        max_turns_of(env, "m:E")


class Once:
    """Ends at its first step, and counts."""

    def __init__(self):
        self.steps, self.closes = 0, 0

    def reset(self, seed=None):
        return "go", {"seed": seed}

    def step(self, action):
        self.steps += 1
        return "end", 1.0, True, False, {}

    def close(self):
        self.closes += 1


def test_a_client_gives_what_the_environment_gave():
    """Two values from a reset, five from a step."""
    client = InProcessEnvClient(Once())
    assert client.reset(5) == ("go", {"seed": 5})
    assert client.step("x") == ("end", 1.0, True, False, {})


def test_a_step_after_the_end_raises_and_reaches_no_environment():
    """Case TE-01: it adds no reward; a reset starts a new episode."""
    client = InProcessEnvClient(Once())
    client.reset()
    client.step("x")
    with pytest.raises(EpisodeOverError, match="after the end of the episode"):
        client.step("y")
    assert client.env.steps == 1
    client.reset()
    assert client.step("x")[1] == 1.0


def test_a_step_before_the_first_reset_raises():
    """There is no episode yet."""
    with pytest.raises(EpisodeOverError, match="before the first reset"):
        InProcessEnvClient(Once()).step("x")


def test_the_environment_is_closed_once():
    """`close` is called exactly once, at teardown."""
    client = InProcessEnvClient(Once())
    client.close()
    client.close()
    assert client.env.closes == 1
    with pytest.raises(EpisodeOverError):
        client.reset()


def test_an_asynchronous_environment_gives_values_and_no_coroutines():
    """As it does under the loop."""

    class Later:
        closes = 0

        async def reset(self, seed=None):
            return "go", {"seed": seed}

        async def step(self, action):
            return "end", 1.0, True, False, {}

        async def close(self):
            self.closes += 1

    client = InProcessEnvClient(Later())
    assert client.reset(5) == ("go", {"seed": 5})
    assert client.step("x")[1] == 1.0
    with pytest.raises(EpisodeOverError):
        client.step("y")
    client.close()
    assert client.env.closes == 1


def test_a_held_out_row_is_not_asked_of_an_environment_that_knows_training_rows_only():
    """It would be a training row."""

    class Rows(Once):
        def reset(self, seed=None, *, row_index=None):
            return "go", {"row": row_index}

    client = InProcessEnvClient(Rows())
    assert client.reset(5, row_index=1) == ("go", {"row": 1})
    with pytest.raises(ConfigurationError, match=r"evaluation row 1.*takes no evaluation"):
        client.reset(row_index=1, evaluation=True)


def test_an_environment_without_a_seed_is_reset_without_one():
    """As under the loop: what its `reset` does not take is not given."""

    class Fixed:
        def reset(self):
            return "go", {}

        def step(self, action):
            return "end", 1.0, True, False, {}

    assert InProcessEnvClient(Fixed()).reset(5) == ("go", {})


def test_an_object_without_the_two_methods_is_no_environment():
    """The error names the method that is missing."""
    with pytest.raises(ConfigurationError, match=r"needs a reset\(\) method; SimpleNamespace has none"):
        InProcessEnvClient(SimpleNamespace())


def test_a_file_that_two_threads_load_at_once_is_loaded_once(tmp_path):
    """Environments are made on threads: none may see a module that is not executed to its end."""
    (tmp_path / "slow_env.py").write_text("import time\ntime.sleep(0.2)\nclass Env: ...\n")
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: load_entrypoint("slow_env.py:Env", tmp_path), range(4)))
    assert len(set(found)) == 1


def test_a_file_imports_the_files_beside_it(tmp_path):
    """As a script does; two folders with files of the same names stay apart, and nothing of it is left behind."""
    found = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "tiltyard_beside.py").write_text(f"NUMBER = {number}\n")
        (folder / "env.py").write_text("import tiltyard_beside\ndef number():\n    return tiltyard_beside.NUMBER\n")
        found.append(load_entrypoint(f"{folder}/env.py:number")())
    assert found == [1, 2]
    assert "tiltyard_beside" not in sys.modules
    assert not [entry for entry in sys.path if entry.startswith(str(tmp_path))]
