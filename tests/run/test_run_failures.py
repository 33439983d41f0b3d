"""Environments that fail while a run goes on."""

from dataclasses import asdict

import pytest

from tiltyard.build import env_factory, probe, run_parts
from tiltyard.errors import ConfigurationError, GroupMismatchError, ManifestError
from tiltyard.manifest import load_manifest
from tiltyard.rollout.groups import Group
from tiltyard.rollout.trace import from_record
from tiltyard.train.batch import build_batch
from tiltyard.train.observer import SilentObserver
from tiltyard.train.run_folder import RunFolder

BROKEN = '''
"""In the first group of the first step one member hangs, one raises and one returns None."""

import itertools
import threading

made = itertools.count()


class Env:
    dataset_size = 20

    def __init__(self):
        self.number = next(made) - 2  # the first two are tried out and closed, before the run
        self.let_go = threading.Event()

    def reset(self, seed=None, row_index=None, evaluation=None):
        return f"row {row_index}", {}

    def step(self, action):
        if self.number == 1:
            self.let_go.wait()
        if self.number == 2:
            raise RuntimeError("out of coins")
        if self.number == 3:
            return None
        return "", sum(c.isalpha() for c in action) / max(1, len(action)), True, False, {}

    def close(self):
        self.let_go.set()
'''

SECTIONS = {
    "environment": "{env_type: rollout, entrypoint: 'env.py:Env', max_turns: 1, request_timeout_s: 3}",
    "algorithm": "{group_size: 6}",
    "rollout": "{max_tokens_per_turn: 200}",
    "training": "{steps: 1, batch_size: 2, learning_rate: 1e-3, eval: {tasks: 0}}",
}


@pytest.fixture(scope="module")
def run(manifest_in, train, tmp_path_factory):
    """One step in which three of twelve episodes fail."""
    folder = tmp_path_factory.mktemp("failures")
    path = manifest_in(folder, BROKEN, **SECTIONS)
    return path, folder / "run", train(path, folder / "run")


def test_a_step_is_finished_without_the_episodes_that_failed(run, read_lines):
    """One hangs, one raises, one returns None: each is in the folder with its reason, and the step is done."""
    _, folder, summary = run
    failed = {line["episode_id"]: line["error"] for line in read_lines(folder / "trajectories.jsonl") if line["failed"]}
    assert failed.keys() == {"00000-000-01", "00000-000-02", "00000-000-03"}
    assert "did not return within step_timeout_s=3" in failed["00000-000-01"]
    assert "RuntimeError: out of coins" in failed["00000-000-02"]
    assert "None" in failed["00000-000-03"]
    assert (summary["steps_done"], summary["failed"], summary["endings"]["env_error"]) == (1, 3, 3)
    assert (summary["replaced_environments"], summary["leaked"]) == (3, 0)


def test_the_loss_is_that_of_the_other_episodes(run, read_lines, tmp_path):
    """The same loss and gradient come out of a batch that never had the failed episodes."""
    path, folder, _ = run
    (line,) = read_lines(folder / "metrics.jsonl")
    groups: dict[str, list] = {}
    for record in sorted(read_lines(folder / "trajectories.jsonl"), key=lambda record: record["episode_id"]):
        if not record["failed"]:
            groups.setdefault(record["group"], []).append(from_record(record))
    assert [len(members) for members in groups.values()] == [3, 6]
    manifest = load_manifest(path)
    section = manifest.environment
    facts = probe(section, env_factory(section))
    with RunFolder.create(tmp_path / "again", "") as again:
        parts = run_parts(manifest, facts, again, SilentObserver())
    parts.collector.close()
    whole = [Group(key, members[0].task, tuple(members)) for key, members in groups.items()]
    update = asdict(parts.learner.update(build_batch(whole, parts.learner.algorithm)))
    for name in ("loss", "grad_norm", "tokens_trained", "tokens_counted"):
        assert line[name] == pytest.approx(update[name], rel=1e-5, abs=1e-7)
    assert line["grad_norm"] > 0


def test_means_are_those_of_the_other_episodes(run, read_lines):
    """A failure is never a reward of 0."""
    _, folder, _ = run
    (line,) = read_lines(folder / "metrics.jsonl")
    rewards = [record["reward"] for record in read_lines(folder / "trajectories.jsonl") if record["reward"] is not None]
    assert (line["reward"], line["failed"]) == (pytest.approx(sum(rewards) / len(rewards)), 3)


def test_environments_that_do_not_repeat_their_task_end_the_run(write_manifest, train, tmp_path):
    """Rewards of different tasks cannot be compared, so nothing is learned from them; what was learned is kept."""
    env = """
import itertools
numbers = itertools.count()

class Env:
    def reset(self, seed=None):
        return f"task {max(8, next(numbers))}", {}  # different ones from the second step on
    def step(self, action):
        return "", float(len(action)), True, False, {}
"""
    with pytest.raises(GroupMismatchError, match=r"reset\(seed\) must give the same task for the same seed"):
        train(write_manifest(env), tmp_path / "run", "training.eval.tasks=0")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000001"]


def test_an_environment_that_cannot_be_closed_is_counted_as_leaked(write_manifest, train, tmp_path):
    """The run is whole, a warning names the reason, and `leaked` is counted."""
    env = """
class Env:
    dataset_size = 4
    made = 0
    def __init__(self):
        Env.made += 1
    def reset(self, seed=None, row_index=None, evaluation=None):
        return "go", {}
    def step(self, action):
        return "", float(len(action)), True, False, {}
    def close(self):
        if Env.made > 2:  # not those that are tried out before the run
            raise OSError("the socket is gone")
"""
    path = write_manifest(env)
    with pytest.warns(UserWarning, match=r"environments failed to close: .*the socket is gone"):
        summary = train(path, tmp_path / "run", "training.eval.tasks=0", "training.steps=1")
    assert summary["leaked"] == 8


def test_a_run_that_cannot_begin_leaves_no_folder(write_manifest, train, tmp_path):
    """The cure can be tried with the same command."""
    path = write_manifest()
    with pytest.raises(ConfigurationError, match="'last:9' asks for 9 layers, but the model has 2"):
        train(path, tmp_path / "run", "model.train=last:9")
    assert not (tmp_path / "run").exists()
    assert train(path, tmp_path / "run", "training.steps=1", "training.eval.tasks=0")["steps_done"] == 1


@pytest.mark.parametrize(
    ("env", "overrides", "message"),
    [
        ("x = 1", (), "environment.entrypoint: .*has no 'Env'"),
        ("Env = 3", (), r"environment.entrypoint: .* is a int; it must be a class or a function"),
        ("class Env:\n    pass", (), "environment: .*is not an environment"),
        ("def Env(size): ...", (), "environment: env_config does not fit the entrypoint"),
        (
            "LETTERS",
            ("environment.max_turns=null",),
            "environment: max_turns is not given and the environment .* has no",
        ),
        (
            "LETTERS" + "    evaluation_size = 3\n",
            (),
            "training.eval.tasks is 4, and only 3 rows are held out by the environment; ask for at most 3",
        ),
    ],
)
def test_what_is_wrong_with_an_environment_is_said_before_the_model_is_loaded(
    env, overrides, message, write_manifest, letters, train, tmp_path
):
    """The key that names it comes first."""
    with pytest.raises(ManifestError, match=message):
        train(write_manifest(env.replace("LETTERS", letters)), tmp_path / "run", "model.name=no/model", *overrides)
