"""`tiltyard check`: a few episodes without a model, what a run needs, and what would go wrong in it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tiltyard.checking import check_manifest
from tiltyard.cli import main
from tiltyard.manifest import load_manifest

ROOT = Path(__file__).parents[2]
SHIPPED = sorted([*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("src/tiltyard/demo/*.yaml")])

SOUND = """
import random
import tiltyard

class Env:
    def reset(self, seed=None):
        self.word = f"word{random.Random(seed).randint(1, 9)}"
        self.over = False
        return f"Say {self.word}.", {}
    def step(self, action):
        if self.over:
            raise tiltyard.EpisodeOverError("over")
        self.over = True
        return "", float(action == self.word), True, False, {}
"""


@pytest.fixture
def write_manifest(tmp_path):
    """As the fixture of this name elsewhere, without a model."""

    def write(env, **sections):
        (tmp_path / "env.py").write_text(env)
        texts = {
            "environment": "{env_type: rollout, entrypoint: 'env.py:Env', max_turns: 3}",
            "model": "{name: a-model-of-no-one}",
            "algorithm": "{group_size: 4}",
            "rollout": "{max_tokens_per_turn: 32}",
            "training": "{steps: 3, batch_size: 2, learning_rate: 1e-3, eval: {tasks: 4}}",
            **sections,
        }
        path = tmp_path / "m.yaml"
        path.write_text("".join(f"{name}: {text}\n" for name, text in texts.items()))
        return path

    return write


@pytest.fixture
def checked(write_manifest):
    """Check an environment made from the sound one by a change."""

    def check(*changes, **sections):
        source = SOUND
        for old, new in changes:
            assert old in source
            source = source.replace(old, new)
        return check_manifest(load_manifest(write_manifest(source, **sections)))

    return check


def rules(found):
    return [(finding.level, finding.check) for finding in found.findings]


def test_a_sound_environment_is_ready(write_manifest, capsys):
    """What is printed: the checks, the episodes, and what a run takes, with the manifest's own numbers."""
    path = write_manifest(SOUND)
    assert main(["check", str(path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{path}: the manifest is sound; 3 turns, no rows"
    assert "Env is sound: 0 errors, 0 warnings" in out
    assert out[-1] == f"{path}: ready to train"
    said = {line.split()[0]: line for line in out[-8:-1]}
    assert said["played"] == "played   6 episodes of 3 tasks with a scripted player, no model: 6 done"
    assert said["reward"] == "reward   0 to 1 an episode, in 1 turns"
    assert (
        "about 3 an episode to read (4 bytes a token; no tokenizer was loaded), up to 3 x 32 to write" in said["tokens"]
    )
    assert "2 groups x 4 episodes = 8; the run has 3 steps, 24 episodes" in said["a"]
    assert "8 + 4 for evaluation = 12 environments at one time" in said["needs"]
    assert said["memory"].endswith(" MiB of Python an environment")


def test_no_model_and_no_torch_are_needed(write_manifest):
    """The model that the manifest names need not be there."""
    path = write_manifest(SOUND)
    code = f"import sys; from tiltyard.cli import main; main(['check', {str(path)!r}]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_members_of_a_group_that_are_asked_different_things_are_an_error(checked):
    """Their rewards could not be compared. `check_env` asks with small seeds only, a run with any."""
    found = checked(
        ("        self.over = False\n", "        self.over = False\n        mark = id(self) if seed > 1000 else 0\n"),
        ("Say {self.word}.", "Say {self.word}{mark}."),
    )
    assert found.env.ok
    assert not found.ok
    assert ("error", "all members of a group are asked the same") in rules(found)


def test_an_episode_that_never_ends_is_told(checked):
    """It would always be cut by max_turns."""
    found = checked(("self.over = True", "pass"), ("True, False, {}", "False, False, {}"))
    assert ("warning", "episodes end by themselves") in rules(found)
    assert found.ok


def test_rewards_that_are_always_equal_are_told(checked):
    """A group without a difference teaches nothing."""
    assert rules(checked(("float(action == self.word)", "0.0"))) == [
        ("warning", "rewards tell one answer from another")
    ]


def test_a_failing_episode_is_an_error_and_exit_code_1(write_manifest, capsys):
    """One that `check_env` does not reach: it asks with small seeds only."""
    source = SOUND.replace("        self.over = False\n", "        self.over = False\n        self.seed = seed\n")
    source = source.replace("self.over = True", "self.over = True\n        self.seed > 1000 and int(action)")
    assert main(["check", str(write_manifest(source))]) == 1
    out = capsys.readouterr().out
    assert (
        "ERROR   no episode fails\n        3 of 6 episodes failed, the first with EnvError: Env.step raised ValueError"
        in out
    )
    assert out.splitlines()[-1].endswith(": not ready")


def test_an_observation_over_the_manifests_budget_is_told(checked):
    """Its middle would not be seen."""
    rollout = "{max_tokens_per_turn: 32, max_observation_chars: 8}"
    assert ("warning", "observations fit") in rules(checked(rollout=rollout))


def test_observations_that_leave_no_room_are_told(checked):
    """The context is the manifest's."""
    rollout = "{max_tokens_per_turn: 32, max_context: 33}"
    found = checked(("Say {self.word}.", "Say " + "on and on " * 9 + "{self.word}."), rollout=rollout)
    assert ("warning", "observations fit") in rules(found)


def test_a_reward_above_max_reward_is_told(checked):
    """What counts as a success would be wrong."""
    environment = "{env_type: rollout, entrypoint: 'env.py:Env', max_turns: 3, max_reward: 0.5}"
    assert rules(checked(environment=environment)) == [("warning", "no reward is higher than max_reward")]


def test_few_rows_and_too_many_held_out_tasks_are_told(checked):
    """Both are known from the environment and the manifest alone."""
    found = checked(
        (
            "    def reset(self, seed=None):",
            (
                "    dataset_size = 2\n    evaluation_size = 3\n"
                "    def reset(self, seed=None, row_index=None, evaluation=False):"
            ),
        ),
        training="{steps: 1, batch_size: 4, eval: {tasks: 5}}",
    )
    assert rules(found)[:2] == [
        ("error", "there are as many held-out tasks as are asked for"),
        ("warning", "there are rows enough"),
    ]


def test_a_slow_step_is_told_before_it_passes_its_deadline(checked):
    """In a run the machine is busier."""
    environment = "{env_type: rollout, entrypoint: 'env.py:Env', max_turns: 3, request_timeout_s: 0.04}"
    found = checked(
        ("import random", "import random, time"),
        ("        if self.over:", "        time.sleep(0.025)\n        if self.over:"),
        environment=environment,
    )
    assert ("warning", "calls end in time") in rules(found)


def test_the_memory_of_sandboxes_is_added_up(checked):
    """An environment says in `sandbox_memory_mib` what the sandbox of one episode has."""
    found = checked(("    def reset", "    sandbox_memory_mib = 512\n    def reset"))
    assert "sandbox  12 sandboxes x 512 MiB = 6 GiB" in str(found)


def test_tools_are_called_with_what_their_schemas_allow(capsys):
    """The calls are scripted, and valid."""
    assert main(["check", "tiltyard.testing.guess:GuessToolEnv"]) == 0
    out = capsys.readouterr().out
    assert "ready, 2 tools: guess, give_up" in out
    assert "played   8 episodes of 4 tasks with a scripted player, no model: 8 done" in out


def test_a_folder_stands_for_its_manifest(write_manifest, tmp_path, capsys):
    """Where there is none, those that are there are named."""
    path = write_manifest(SOUND)
    assert main(["check", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"tiltyard: {tmp_path} is a folder without a train.yaml; give one of its files: m.yaml\n"
    )
    path.rename(tmp_path / "train.yaml")
    assert main(["check", str(tmp_path)]) == 0


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_manifest_that_is_shipped_is_ready(path):
    """Its held-out tasks are there, its episodes do not fail, its groups agree."""
    manifest = load_manifest(path)
    if manifest.environment.env_type == "rollout" and manifest.environment.env_url is None:
        found = check_manifest(manifest)
        assert found.ok, str(found)


def test_what_is_nothing_that_can_be_checked_is_told(tmp_path, monkeypatch, capsys):
    """The name of a folder, mistyped, is no faulty entrypoint."""
    monkeypatch.chdir(tmp_path)
    assert main(["check", "my_evn"]) == 2
    assert capsys.readouterr().err == (
        "tiltyard: there is no folder 'my_evn', and it is neither a manifest (.yaml, .yml, .toml) nor an entrypoint "
        "(module:attr or path.py:attr)\n"
    )
