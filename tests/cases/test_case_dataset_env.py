"""Cases DS-01, DS-02 and DS-04: which rows are played, and how often."""

from collections import Counter

import pytest

from tiltyard import (
    ConfigurationError,
    Limits,
    QADatasetEnv,
    RolloutCollector,
    TaskAssigner,
    evaluation_tasks,
    load_rows,
    make_renderer,
    split_rows,
)
from tiltyard.errors import ManifestError
from tiltyard.manifest import load_manifest
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.testing.tokens import ScriptedTokens

ROWS = [{"question": f"row {n}", "answer": str(n)} for n in range(7)]
TOKENIZER = byte_tokenizer()


def length(completion):
    return len(completion)


def collector(rows, batch_size, group_size, *, held_out=None, seed=0):
    policy = ScriptedTokens(TOKENIZER, ["an answer"])
    return RolloutCollector(
        lambda: QADatasetEnv(rows, length, held_out=held_out),
        batch_size,
        group_size,
        policy=policy,
        renderer=make_renderer(TOKENIZER),
        limits=Limits(max_turns=1),
        assigner=TaskAssigner(len(rows), batch_size, seed=seed),
    )


def asked(trajectory):
    return trajectory.messages[0]["content"]


@pytest.mark.parametrize("group_size", [1, 4])
def test_a_group_is_copies_of_one_row_and_an_epoch_has_each_row_once(group_size):
    """DS-04: 7 rows, 3 prompts a step: after 7 steps each row was in exactly 3 groups, and none was dropped."""
    with collector(ROWS, 3, group_size) as collecting:
        groups = [group for _ in range(7) for group in collecting.collect()]
    rows = []
    for group in groups:
        texts = {asked(member) for member in group.members}
        assert len(group.members) == group_size
        assert len(texts) == 1
        rows.append(texts.pop())
    for epoch in range(3):
        assert sorted(rows[epoch * 7 : epoch * 7 + 7]) == [row["question"] for row in ROWS]


def test_fewer_rows_than_prompts_a_step_begin_the_next_epoch():
    """DS-04: 2 rows and 3 prompts a step: a whole batch, never an empty one."""
    with collector(ROWS[:2], 3, 2) as collecting:
        counts = Counter(asked(group.members[0]) for _ in range(2) for group in collecting.collect())
    assert counts == {"row 0": 3, "row 1": 3}


def test_the_order_is_that_of_the_seed_and_of_nothing_else():
    """DS-04: two runs have one order, whatever is sampled."""
    orders = []
    for line in ("x", "something else"):
        with collector(ROWS, 3, 2, seed=5) as collecting:
            collecting._rollout.policy.scripts = [line]
            orders.append([asked(group.members[0]) for _ in range(3) for group in collecting.collect()])
    assert orders[0] == orders[1]


def test_evaluation_visits_each_row_once():
    """DS-04: 5 held-out rows are 5 episodes, however large the groups are."""
    parts = split_rows(load_rows(ROWS + [{"question": f"row {n}", "answer": ""} for n in range(7, 20)]), 0.75)
    with collector(parts.train, 3, 4, held_out=parts.held_out) as collecting:
        played = collecting.evaluate(evaluation_tasks(5, dataset_size=len(parts.held_out)))
    assert sorted(map(asked, played)) == sorted(row["question"] for row in parts.held_out)
    with pytest.raises(ConfigurationError, match="6 evaluation tasks were asked for, but there are 5"):
        evaluation_tasks(6, dataset_size=len(parts.held_out))


MANIFEST = "environment: {{env_type: rollout, dataset: '{}', rubric_file_path: reward.py}}\nmodel: {{name: m}}\n"


@pytest.fixture
def project(tmp_path):
    """A folder with what the references of DS-01 can mean."""
    (tmp_path / "demo" / "quiz" / "checkpoint-5").mkdir(parents=True)
    (tmp_path / "demo" / "quiz" / "checkpoint-5" / "model.safetensors").write_bytes(b"")
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "a.jsonl").write_text('{"question": "x"}\n')
    (tmp_path / "mixed" / "b.csv").write_text("question\nx\n")
    (tmp_path / "reward.py").write_text("def reward(completion): return 1\n")
    return tmp_path


@pytest.mark.parametrize("source", ["data/trian.parquet", "rows.jsonl", "~/no-such-rows.jsonl"])
def test_a_mistyped_file_is_no_id_of_a_hub(project, source):
    """DS-01: the manifest is refused with the absolute path, and nothing is asked over the network."""
    (project / "m.yaml").write_text(MANIFEST.format(source))
    with pytest.raises(ManifestError, match=r"environment\.dataset: there is no file or folder /"):
        load_manifest(project / "m.yaml")


def test_a_folder_does_not_shadow_an_id_by_accident(project):
    """DS-01: both readings are named, and each can be written."""
    (project / "m.yaml").write_text(MANIFEST.format("demo/quiz"))
    with pytest.raises(ManifestError, match=r"environment\.dataset: .*'\./demo/quiz'.*'hub:demo/quiz'"):
        load_manifest(project / "m.yaml")
    (project / "m.yaml").write_text(MANIFEST.format("hub:demo/quiz"))
    assert load_manifest(project / "m.yaml").environment.dataset == "hub:demo/quiz"
    (project / "m.yaml").write_text(MANIFEST.format("./demo/quiz"))
    manifest = load_manifest(project / "m.yaml")
    with pytest.raises(ConfigurationError, match="has no data files"):
        load_rows(manifest.environment.dataset)


def test_a_mixed_folder_needs_a_choice(project):
    """DS-01: a folder with two kinds of files is refused; each file can be named."""
    with pytest.raises(ConfigurationError, match="name one file"):
        load_rows("./mixed", base=project)
    assert len(load_rows("./mixed/a.jsonl", base=project)) == 1
