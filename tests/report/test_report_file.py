"""What a report holds of its run: everything of a small one, and a bounded part of a large one."""

import base64
import gzip
import json
import re
import warnings
from pathlib import Path

import pytest
from report_folders import failed, said, tokenizer_in, write_run

from tiltyard.errors import ConfigurationError
from tiltyard.report.curves import MAX_POINTS, chosen_steps, curves
from tiltyard.report.episodes import read_episodes
from tiltyard.report.page import leave_report, write_report
from tiltyard.report.reading import read_run
from tiltyard.report.token_texts import token_texts
from tiltyard.train.run_folder import RunFolder


def blocks(file: Path) -> dict:
    """Everything that is packed into a report."""
    found = re.findall(r'<script type="application/gzip" id="([\w-]+)">([\w+/=]*)</script>', file.read_text())
    return {name: json.loads(gzip.decompress(base64.b64decode(text))) for name, text in found}


def notes(file: Path) -> list[str]:
    return blocks(file)["runs"]["runs"][0]["notes"]


def test_a_small_run_is_all_there(tmp_path):
    """A row and a page for every episode, and nothing to note."""
    report = write_report(write_run(tmp_path / "run", [said(f"e{number}") for number in range(120)]))
    packed = blocks(report)
    assert [len(packed[f"pages-0-{number}"]) for number in range(3)] == [50, 50, 20]
    assert packed["rows-0"]["id"] == [f"e{number}" for number in range(120)]
    assert notes(report) == []


def test_of_a_long_run_failed_and_evenly_spaced_episodes_have_their_pages(tmp_path):
    """The others have their rows, and the report says where their messages are."""
    episodes = [failed("f") if number == 55 else said(f"e{number}") for number in range(100)]
    file = write_run(tmp_path / "run", episodes) / "trajectories.jsonl"
    found = read_episodes(file, max_bytes=file.stat().st_size // 4)
    kept = [number for number, episode in enumerate(found.shown) if episode.page is not None]
    assert kept == sorted({*range(0, 100, 5), 55})
    assert found.count == len(found.shown) == 100


def test_a_table_has_a_bound_too(tmp_path):
    """Rows are left out evenly, and never those that have a page."""
    file = write_run(tmp_path / "run", [said(f"e{number}") for number in range(100)]) / "trajectories.jsonl"
    found = read_episodes(file, max_bytes=file.stat().st_size // 10, max_rows=40)
    assert (found.count, len(found.shown)) == (100, 40)
    assert sum(episode.page is not None for episode in found.shown) == 10
    assert found.endings == {"done": 100}


def test_an_episode_that_was_played_again_stands_there_once(tmp_path):
    """The later attempt's line counts."""
    folder = write_run(tmp_path / "run", [said("e1", reward=0.0), said("e2"), said("e1", reward=5.0)])
    report = write_report(folder)
    rows = blocks(report)["rows-0"]
    assert (rows["id"], rows["reward"]) == (["e2", "e1"], [1.0, 5.0])
    assert notes(report) == ["1 episodes were played again by a later attempt, and stand here once."]


def test_a_run_that_goes_on_has_a_report_of_what_is_there(tmp_path):
    """No summary, a line that is being written: the report is of the rest."""
    with RunFolder.create(tmp_path / "run", "training: {steps: 9}\n") as folder:
        folder.write_trajectory(said("e1"), phase="train", step=1, group="g")
        folder.write_metrics({"step": 1, "reward": 0.5})
        with (tmp_path / "run" / "trajectories.jsonl").open("a") as file:
            file.write('{"episode_id": "e2", "end')
        run = blocks(write_report(tmp_path / "run"))["runs"]["runs"][0]
    assert re.fullmatch(r"not ended: process \d+ on .+ goes on with it", run["state"])
    assert (run["episodes"], run["steps"]) == (1, [1])


def test_a_line_that_cannot_be_read_costs_that_line(tmp_path):
    """It is counted, and the rest is shown."""
    folder = write_run(tmp_path / "run", [said("e1")])
    for name in ("trajectories.jsonl", "metrics.jsonl"):
        with (folder / name).open("a") as file:
            file.write("this is no JSON\n")
    assert notes(write_report(folder)) == [
        "Line 6 of metrics.jsonl cannot be read and is left out.",
        "1 lines of trajectories.jsonl cannot be read and are left out.",
    ]


def test_a_folder_without_a_run_is_refused(tmp_path):
    """The message says what a run folder has."""
    with pytest.raises(ConfigurationError, match=r"is no run folder: it has no config\.yaml"):
        write_report(tmp_path)


def test_a_report_that_cannot_be_written_is_a_warning_at_the_end_of_a_run(tmp_path):
    """The run is whole without it."""
    folder = write_run(tmp_path / "run", [said("e1")])
    (folder / "report.html").mkdir()
    with pytest.warns(UserWarning, match=r"cannot be written: Is a directory; give --out FILE; the run has no"):
        leave_report(folder)
    assert (folder / "summary.json").is_file()


def test_what_goes_wrong_in_a_report_is_a_warning_too(tmp_path):
    """A manifest of the wrong shape is somebody's edit, and costs the run nothing."""
    folder = write_run(tmp_path / "run", [said("e1")])
    (folder / "config.yaml").write_text("training: 3\n")
    with pytest.warns(UserWarning, match="the report raised AttributeError"):
        leave_report(folder)


def test_figures_that_nobody_knows_are_curves_too(tmp_path):
    """A number under any name, behind those with a title; what is no number, or never there, is none."""
    steps = [{"step": 1, "attempt": 0, "odd": 2, "reward": None, "skipped": False, "deep": {"er": 1.5}}]
    assert [(curve.name, curve.main, curve.values) for curve in curves(steps)] == [
        ("deep/er", False, (1.5,)),
        ("odd", False, (2.0,)),
    ]


def test_counts_of_a_step_are_shown_as_shares_of_its_episodes():
    """Steps differ in how many they have."""
    found = {c.name: c.values for c in curves([{"step": 1, "episodes": 8, "failed": 2, "sampled_tokens": 40}])}
    assert (found["failed_share"], found["tokens_per_episode"]) == ((0.25,), (5.0,))


def test_a_long_curve_keeps_its_ends():
    """And has a bound."""
    shown = chosen_steps([{"step": step} for step in range(1, 3 * MAX_POINTS)])
    assert (len(shown), shown[0]["step"], shown[-1]["step"]) == (MAX_POINTS, 1, 3 * MAX_POINTS - 1)


def test_a_step_that_was_played_again_counts_once(tmp_path):
    """The last line of a step is that which was learned from."""
    folder = write_run(tmp_path / "run", [], steps=2)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "reward": 9.0}\n')
    assert [step["reward"] for step in read_run(folder).steps] == [0.2, 9.0]


def test_tokens_are_read_with_a_tokenizer_that_is_here_and_with_no_other(tmp_path):
    """Nothing is downloaded for a report; without the tokenizer its tokens are ids."""
    assert token_texts(tokenizer_in(tmp_path / "model"), [72, 105]) == {72: "H", 105: "i"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert token_texts("nobody/has-this-model", [1]) == {}
        assert token_texts("not a name at all", [1]) == {}
        assert token_texts(None, [1]) == {}
