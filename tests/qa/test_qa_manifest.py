"""A manifest whose environment is a data set and a file that scores the answers."""

import json
import shutil

import pytest

from tiltyard.build import env_factory, probe
from tiltyard.cli import main
from tiltyard.errors import CheckpointError, ConfigurationError, ManifestError
from tiltyard.manifest import EnvironmentSection, load_manifest
from tiltyard.planning import assigner, held_out_tasks

REWARD = """
from tiltyard import WeightedSum

def letters(completion):
    return sum(c.isalpha() for c in completion) / max(1, len(completion))

def short(completion, limit):
    return len(completion) <= limit

RUBRIC = WeightedSum({"letters": letters, "short": short}, weights={"short": 0.5})
"""

ENVIRONMENT = (
    "{env_type: rollout, dataset: rows.jsonl, columns: {q: question}, rubric_file_path: reward.py, "
    "prompt_template: {user_0: 'Say {question}.'}, train_test_split: 0.75}"
)


def write_rows(path, count=16, word="word"):
    path.write_text("".join(json.dumps({"q": f"{word} {n}", "limit": n}) + "\n" for n in range(count)))


@pytest.fixture
def write(manifest_in, tmp_path):
    """Write rows, a reward file and a manifest over them."""

    def written(environment=ENVIRONMENT, folder=tmp_path, **sections):
        write_rows(folder / "rows.jsonl")
        (folder / "reward.py").write_text(REWARD)
        return manifest_in(folder, environment=environment, **sections)

    return written


@pytest.fixture(scope="module")
def run(manifest_in, train, tmp_path_factory):
    """A run over the rows, and what it has said at its end."""
    folder = tmp_path_factory.mktemp("rows")
    write_rows(folder / "rows.jsonl")
    (folder / "reward.py").write_text(REWARD)
    train(manifest_in(folder, environment=ENVIRONMENT), folder / "run")
    return folder / "run"


def probed(path):
    section = load_manifest(path).environment
    return probe(section, env_factory(section))


def test_rows_and_a_reward_file_are_trained_on(run, read_lines):
    """Held-out rows are played before and after, and none of them is trained on."""
    asked = {True: set(), False: set()}
    for episode in read_lines(run / "trajectories.jsonl"):
        asked[episode["task"]["evaluation"]].add(episode["messages"][0]["content"])
    assert asked[True]
    assert not asked[True] & asked[False]
    assert all(text.startswith("Say word ") for text in asked[True] | asked[False])


def test_each_part_of_the_rubric_is_recorded(run, read_lines):
    """In every episode that was scored, and its mean in every line of metrics."""
    lines = read_lines(run / "metrics.jsonl")
    assert len(lines) == 3
    assert all({"reward_parts/letters", "reward_parts/short"} <= line.keys() for line in lines)
    scored = [episode for episode in read_lines(run / "trajectories.jsonl") if episode["ending"] == "done"]
    assert scored
    for episode in scored:
        parts = episode["info"]["reward_parts"]
        assert episode["reward"] == pytest.approx(parts["letters"] + 0.5 * parts["short"])


def test_all_members_of_a_group_are_asked_the_same_row(run, read_lines):
    """One row, one prompt, a group."""
    groups = {}
    for episode in read_lines(run / "trajectories.jsonl"):
        if not episode["task"]["evaluation"]:
            groups.setdefault((episode["step"], episode["group"]), []).append(episode)
    assert len(groups) == 6
    for members in groups.values():
        assert len(members) == 4
        assert len({member["task"]["row_index"] for member in members}) == 1
        assert len({member["first_observation"] for member in members}) == 1


def test_the_rows_say_how_many_there_are_and_one_turn_is_usual(write):
    """Nothing of that is written in the manifest."""
    facts = probed(write())
    assert (facts.rows, facts.held_out_rows, facts.max_turns, facts.tools) == (12, 4, 1, False)
    assert facts.fingerprint


ALL_ROWS = ENVIRONMENT.replace("0.75", "1")


def test_a_split_of_1_trains_on_all_rows_and_evaluates_nothing(write, train, tmp_path):
    """An integer, as YAML reads it; the run has no evaluation, and that is no error."""
    facts = probed(write(ALL_ROWS))
    assert (facts.rows, facts.held_out_rows) == (16, 0)
    train(write(ALL_ROWS, training="{steps: 3, batch_size: 2, learning_rate: 1e-3}"), tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["eval_before"], summary["eval_after"], summary["steps_done"]) == (None, None, 3)


def test_held_out_tasks_of_a_split_of_1_are_refused_by_their_key(write):
    """What was asked for cannot be had; nothing is evaluated on the rows that are trained on."""
    manifest = load_manifest(write(ALL_ROWS, training="{eval: {tasks: 4}}"))
    with pytest.raises(ManifestError) as caught:
        held_out_tasks(manifest, probe(manifest.environment, env_factory(manifest.environment)))
    assert str(caught.value) == (
        "training.eval.tasks is 4, and no rows are held out: environment.train_test_split is 1, which trains on all; "
        "set it below 1, or ask for 0 evaluation tasks"
    )


def test_more_tasks_than_held_out_rows_are_refused_with_what_to_do(write):
    """By the key that asked for them: the manifest's, or the command's option."""
    manifest = load_manifest(write(ENVIRONMENT, training="{eval: {tasks: 5}}"))
    facts = probe(manifest.environment, env_factory(manifest.environment))
    rest = "and only 4 rows are held out: environment.train_test_split is 0.75; lower it, or ask for at most 4"
    for key, asked in (("training.eval.tasks is 5", None), ("--tasks is 6", 6)):
        with pytest.raises(ManifestError) as caught:
            held_out_tasks(manifest, facts, asked)
        assert str(caught.value) == f"{key}, {rest}"


@pytest.mark.parametrize("share", ["0", "1.5", "true"])
def test_a_share_that_is_none_is_refused_by_its_key(write, share):
    """More than nothing, at most all, and a number."""
    with pytest.raises(ManifestError, match=r"environment\.train_test_split"):
        load_manifest(write(ENVIRONMENT.replace("0.75", share)))


def test_a_parquet_file_and_the_aliases_mean_the_same(write, tmp_path):
    """`name`, `reward_file_path` and `reward_fn_name` are other spellings."""
    pyarrow = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").Table.from_pylist([{"q": "x", "limit": 3}] * 4)
    pyarrow.write_table(table, tmp_path / "rows.parquet")
    environment = (
        ENVIRONMENT.replace("dataset: rows.jsonl", "name: rows.parquet")
        .replace("rubric_file_path", "reward_file_path")
        .replace("reward.py", "reward.py, reward_fn_name: letters")
    )
    manifest = load_manifest(write(environment))
    assert manifest.environment.dataset == str(tmp_path / "rows.parquet")
    env = env_factory(manifest.environment)()
    env.reset(row_index=0)
    assert env.step("ab12")[1] == 0.5


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{q: question}", "{quesiton: question}", r"environment\.columns: .*'quesiton'.*'q', 'limit'"),
        ("{q: question}", "{q: limit}", r"environment\.columns: .*'q' and 'limit'.*both 'limit'"),
        ("{question}", "{qestion}", r"environment\.prompt_template: .*\{qestion\}.*'question', 'limit'"),
        ("reward.py", "reward.py, rubric_name: shrt", r"environment\.rubric_name: .*no 'shrt'; did you mean 'short'"),
        (
            "0.75",
            "0.75, max_turns: 2",
            r"environment\.max_reward: is required with a dataset and max_turns 2: an a",
        ),
    ],
)
def test_what_is_wrong_is_told_by_check_before_a_run(write, capsys, old, new, message):
    """`tiltyard check` names the key, and what there is."""
    path = write(ENVIRONMENT.replace(old, new))
    with pytest.raises(ManifestError, match=message):
        probed(path)
    assert main(["check", str(path)]) == 2
    assert "environment." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def a(completion): return 1\ndef b(completion): return 1\n", "has a, b; say with rubric_name"),
        ("x = 1\n", "no rubric and no public function"),
        ("RUBRIC = 3\n", "is a int"),
        ("import not_there\n", "ModuleNotFoundError"),
        ("def reward(nums): return 1\n", r"rubric_file_path: .*asks for 'nums'.*'question', 'limit'"),
    ],
)
def test_a_reward_file_that_cannot_be_used_is_told_before_a_run(write, tmp_path, source, message):
    """Where there is a choice it is not guessed, and a column that is not there is an error now."""
    path = write()
    (tmp_path / "reward.py").write_text(source)
    with pytest.raises(ManifestError, match=message):
        probed(path)


def test_the_only_function_of_a_file_needs_no_name(write, tmp_path):
    """What it imports, and what begins with an underscore, is not meant."""
    path = write()
    (tmp_path / "reward.py").write_text("from math import sqrt\ndef _no(): ...\ndef yes(completion): return 0.25\n")
    env = env_factory(load_manifest(path).environment)()
    env.reset(row_index=0)
    assert env.step("x")[1] == 0.25


def test_another_dataset_of_the_same_name_is_noticed_on_resume(write, train, tmp_path):
    """The rows' content is part of what a checkpoint is of; it is not skipped through."""
    train(write(training="{steps: 1, batch_size: 1, eval: {tasks: 0}}"), tmp_path / "run")
    write_rows(tmp_path / "rows.jsonl", word="other")
    with pytest.raises((CheckpointError, ConfigurationError), match=r"rows\.jsonl"):
        train(None, tmp_path / "run", "training.steps=2", resume=True)


def test_a_moved_line_is_another_dataset(write, tmp_path):
    """Not the name and size of a file, but what it holds."""
    path = write()
    manifest = load_manifest(path)
    before = assigner(manifest, probed(path)).state_dict()
    assert assigner(manifest, probed(path)).state_dict() == before
    lines = (tmp_path / "rows.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "rows.jsonl").write_text("".join([*lines[1:], lines[0]]))
    assert assigner(manifest, probed(path)).state_dict() != before


def test_a_data_set_of_answers_has_nothing_to_play():
    """It is trained on; playing it is an error that says so."""
    section = EnvironmentSection(env_type="dataset", objective="sft", dataset="rows.jsonl")
    with pytest.raises(ManifestError, match="nothing to play"):
        env_factory(section)


# Paths


def test_files_are_beside_the_manifest_wherever_it_is_started_from(write, tmp_path, monkeypatch):
    """The working folder plays no part; the resolved manifest has absolute paths."""
    path = write()
    for start in (tmp_path, tmp_path.parent):
        monkeypatch.chdir(start)
        section = load_manifest(path).environment
        assert section.dataset == str(tmp_path / "rows.jsonl")
        assert section.rubric_file_path == str(tmp_path / "reward.py")


def test_a_path_on_the_command_line_is_the_shells(write, tmp_path, monkeypatch):
    """An override is relative to where it was typed."""
    path = write()
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(tmp_path / "rows.jsonl", tmp_path / "elsewhere" / "other.jsonl")
    monkeypatch.chdir(tmp_path / "elsewhere")
    section = load_manifest(path, ["environment.dataset=other.jsonl"]).environment
    assert section.dataset == str(tmp_path / "elsewhere" / "other.jsonl")


def test_a_reward_file_imports_its_own_siblings(tmp_path):
    """Two files of one name, each with a sibling of one name, stay apart."""
    scores = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_rows(folder / "rows.jsonl")
        (folder / "beside.py").write_text(f"SCORE = {number}\n")
        (folder / "reward.py").write_text("from beside import SCORE\ndef reward(completion): return SCORE\n")
        path = folder / "m.yaml"
        path.write_text(f"environment: {ENVIRONMENT}\nmodel: {{name: smollm2-135m-instruct}}\n")
        env = env_factory(load_manifest(path).environment)()
        env.reset(row_index=0)
        scores.append(env.step("x")[1])
    assert scores == [1.0, 2.0]
