"""An environment that cannot be loaded, made or closed is an error of the manifest that names it."""

import threading

import pytest

from tiltyard.errors import ManifestError
from tiltyard.manifest import EnvironmentSection
from tiltyard.manifest.probing import env_factory, probe

SOUND = """
class Env:
    max_turns = 2
    def reset(self, seed=None):
        return "Begin.", {}
    def step(self, action):
        return "", 1.0, True, False, {}
"""


def probed(folder, source, **keys):
    (folder / "env.py").write_text(source)
    section = EnvironmentSection(env_type="rollout", entrypoint=f"{folder}/env.py:Env", **keys)
    return probe(section, env_factory(section))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("class Env(:\n", r"environment\.entrypoint: importing .*SyntaxError: invalid syntax \(env\.py, line 1\)$"),
        ("import not_there\n", r"ModuleNotFoundError: No module named 'not_there' \(.*env\.py, line 1\)$"),
        ("raise ValueError('at import')\n", r"raised ValueError: at import \(.*env\.py, line 1\)$"),
        (
            "class Env:\n    def __init__(self):\n        raise OSError('no port')\n",
            r"environment: making .*env\.py:Env' raised OSError: no port \(.*env\.py, line 3\)$",
        ),
        (
            SOUND + "    def close(self):\n        raise OSError('gone')\n",
            r"Env\.close raised OSError: gone \(.*line 9\)$",
        ),
        (
            SOUND + "    @property\n    def dataset_size(self):\n        raise OSError('x')\n",
            r"OSError: x \(.*line 10\)$",
        ),
        (SOUND + "    dataset_size = '10'\n", r"environment: Env\.dataset_size is '10'; it is a whole number"),
        (SOUND + "    evaluation_size = 0\n", r"environment: Env\.evaluation_size is 0; it is a whole number"),
    ],
    ids=["syntax", "import", "at import", "constructor", "close", "property", "rows", "held-out rows"],
)
def test_what_the_environments_code_raises_is_an_error_that_names_the_place(tmp_path, source, message):
    """Whoever wrote it finds the file and the line, without a traceback through ours."""
    with pytest.raises(ManifestError, match=message):
        probed(tmp_path, source)


@pytest.mark.parametrize(("method", "doing"), [("__init__", "making"), ("close", "closing")])
def test_an_environment_that_hangs_while_it_is_probed_is_an_error(tmp_path, method, doing):
    """The bound is that of a step."""
    hangs = f"    def {method}(self):\n        import threading\n        threading.Event().wait()\n"
    before = threading.active_count()
    with pytest.raises(ManifestError, match=rf"env\.py:Env', {doing} it: .*step_timeout_s=0\.2"):
        probed(tmp_path, SOUND + hangs, request_timeout_s=0.2)
    assert threading.active_count() <= before + 1


def test_a_sound_environment_is_asked_and_closed(tmp_path):
    """Its own turns and rows are the facts."""
    facts = probed(tmp_path, SOUND + "    dataset_size, evaluation_size = 10, 4\n")
    assert (facts.max_turns, facts.rows, facts.held_out_rows, facts.tools) == (2, 10, 4, False)
