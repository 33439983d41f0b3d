"""`tiltyard rollout` and `tiltyard eval` with a served model: what they print and keep, and what `--resume` does."""

import json
import re

import pytest
from scripted_process import ScriptedProcess

from tiltyard.cli import main
from tiltyard.manifest import load_manifest, manifest_to_yaml
from tiltyard.play import new_request, play_manifest
from tiltyard.testing.openai_server import Answer, OpenAIServer
from tiltyard.train.episodes import SilentEpisodes
from tiltyard.train.run_folder import RunFolder

ROWS = '''
"""Two turns; rows from 2 on are won. A file `broken` beside this one makes row 1 raise.

A file `stop` holds a number: at that answer Ctrl-C is pressed, once.
"""

import os
import signal
from pathlib import Path

broken, stop = Path(__file__).with_name("broken"), Path(__file__).with_name("stop")


class Env:
    dataset_size = 6
    evaluation_size = 4
    answers = 0

    def reset(self, seed=None, row_index=None, evaluation=None):
        self.row, self.turn = row_index, 0
        return f"{'held out' if evaluation else 'row'} {row_index}", {}

    def step(self, action):
        if self.row == 1 and broken.exists():
            raise RuntimeError("out of paper")
        Env.answers += 1
        if stop.exists() and Env.answers == int(stop.read_text()):
            stop.unlink()
            os.kill(os.getpid(), signal.SIGINT)
        self.turn += 1
        return "more", 0.5, self.turn == 2, False, {"success": self.row >= 2}
'''


@pytest.fixture
def manifest(tmp_path):
    """A manifest whose model is nowhere: only a server can play."""
    (tmp_path / "env.py").write_text(ROWS)
    path = tmp_path / "m.yaml"
    path.write_text(
        "environment: {env_type: rollout, entrypoint: 'env.py:Env', max_turns: 3}\nmodel: {name: no/such-model}\n"
    )
    return str(path)


@pytest.fixture
def server():
    """A server that says yes."""
    with OpenAIServer(lambda body, turn: "yes", tokens="vllm") as started:
        yield started


def served(server, *more):
    return ["--api", server.base_url, "--model", "m", *more]


def summary_in(folder):
    return json.loads((folder / "summary.json").read_text())


def test_eval_prints_pass_at_k_with_intervals(manifest, server, tmp_path, capsys):
    """Two of four rows are won, always: pass@k is one half for every k, and 12 episodes are worth four tasks."""
    out = tmp_path / "run"
    assert main(["eval", manifest, "-k", "3", "--out", str(out), *served(server)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert re.sub(r"\d+ s$", "N s", printed[0]) == "finished 12 of 12 episodes in N s"
    assert printed[1:9] == [
        "eval       success 0.500 [0.150, 0.850] (n=4), reward 1.000, turns 2.0, turns to success 2.0",
        "                       mean   95 % interval   tasks",
        "           avg@3      0.500   [0.150, 0.850]      4",
        "           pass@1     0.500   [0.150, 0.850]      4",
        "           pass@2     0.500   [0.150, 0.850]      4",
        "           pass@3     0.500   [0.150, 0.850]      4",
        "           4 tasks, 3 episodes each; intervals: Wilson's score interval, clustered by task",
        "episodes   12 played, 0 failed, 0 truncated (12 done)",
    ]
    assert printed[10:] == ["leases     leaked=0", f"folder     {out}"]
    found = summary_in(out)
    assert (found["server"]["model"], found["planned"], found["missing"], found["failed"]) == ("m", 12, 0, 0)
    assert found["evaluations"]["eval"]["samples"]["pass_at"]["3"]["mean"] == 0.5


def test_a_rollout_plays_the_training_tasks_and_keeps_every_episode(manifest, server, read_lines, tmp_path, capsys):
    """Each task `-n` times, in a file that says who was asked what; the manifest's model is not needed."""
    out = tmp_path / "run"
    command = ["rollout", manifest, "-n", "2", "--tasks", "3", "--out", str(out)]
    assert main([*command, *served(server, "--concurrency", "4")]) == 0
    lines = read_lines(out / "trajectories.jsonl")
    assert sorted(line["episode_id"] for line in lines) == [
        f"rollout-{i:05d}-{j:04d}" for i in range(3) for j in (0, 1)
    ]
    assert {(line["phase"], line["task"]["evaluation"], line["attempt"]) for line in lines} == {("rollout", False, 0)}
    assert server.most_at_once <= 4
    assert "run folder" in capsys.readouterr().err
    found = summary_in(out)
    assert (found["episodes"], found["leaked"], found["sampled_tokens"] > 0) == (6, 0, True)


def test_whole_episodes_are_played_on_workers_where_the_manifest_has_them(manifest, server, read_lines, tmp_path):
    """They ask the server themselves, with the same seeds, and the folder is that of a run in one process."""
    played = {}
    for name, more in (("here", []), ("there", ["--set", "rollout={backend: process, workers: 2}"])):
        out = tmp_path / name
        assert main(["eval", manifest, "--out", str(out), *more, *served(server, "--token-ids", "vllm")]) == 0
        lines = read_lines(out / "trajectories.jsonl")
        played[name] = sorted((line["episode_id"], line["ids"], line["messages"], line["reward"]) for line in lines)
        found = summary_in(out)
        assert (found["episodes"], found["failed"], found["leaked"], found["sampled_tokens"] > 0) == (4, 0, 0, True)
        assert found["ledger"]["ok"]
    assert played["here"] == played["there"]
    seeds = [body["seed"] for body in server.bodies]
    assert sorted(seeds[:8]) == sorted(seeds[8:])


def test_the_samples_of_a_task_have_seeds_of_their_own(manifest, server, tmp_path):
    """Equal seeds would make pass@k a repetition; an equal command asks with equal seeds."""
    for name in ("a", "b"):
        main(["rollout", manifest, "-n", "2", "--tasks", "2", "--out", str(tmp_path / name), *served(server)])
    seeds = [body["seed"] for body in server.bodies]
    assert len(set(seeds)) == 8
    assert sorted(seeds[:8]) == sorted(seeds[8:])


def test_token_ids_make_the_episodes_trainable(manifest, server, read_lines, tmp_path, capsys):
    """They are asked for with `--token-ids`; without it the last words say so."""
    main(["rollout", manifest, "--out", str(tmp_path / "with"), *served(server, "--token-ids", "vllm")])
    assert "clean: every later prompt (6) extended" in capsys.readouterr().out
    assert all(line["ids"] for line in read_lines(tmp_path / "with" / "trajectories.jsonl"))
    main(["rollout", manifest, "--out", str(tmp_path / "without"), *served(server)])
    assert "not to be trained on: --token-ids asks a vLLM or llama.cpp server for their ids" in capsys.readouterr().out


def test_the_manifest_says_how_to_sample(manifest, server, tmp_path):
    """Temperature and top_p always; top_k, which is not part of OpenAI's API, only where it matters."""
    main(["eval", manifest, "--out", str(tmp_path / "a"), "--set", "training.eval.temperature=0", *served(server)])
    main(["eval", manifest, "--out", str(tmp_path / "b"), "--set", "rollout.top_k=5", *served(server)])
    fields = [(body["temperature"], body["top_p"], body.get("top_k")) for body in server.bodies]
    assert fields == [(0.0, 1.0, None)] * 8 + [(1.0, 1.0, 5)] * 8


def test_the_key_is_sent_and_never_written(manifest, tmp_path, capsys, monkeypatch):
    """It comes from the environment; a server that repeats it in an error does not get it into our files."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    refusal = Answer(status=401, error="wrong key sk-secret")
    with OpenAIServer(lambda body, turn: refusal) as server:
        assert main(["rollout", manifest, "--tasks", "1", "--out", str(tmp_path / "run"), *served(server)]) == 1
    assert server.headers[0]["authorization"] == "Bearer sk-secret"
    printed = capsys.readouterr()
    kept = "".join(path.read_text() for path in (tmp_path / "run").iterdir())
    assert "sk-secret" not in printed.out + printed.err + kept
    assert "such as: " in printed.out


def test_failed_episodes_are_played_again_and_finished_ones_are_not(manifest, server, read_lines, tmp_path, capsys):
    """Row 1 raises at first. Both its episodes failed, with their reason; `--resume` plays these two and no other."""
    (tmp_path / "broken").touch()
    out = tmp_path / "run"
    assert main(["eval", manifest, "-k", "2", "--out", str(out), *served(server)]) == 0
    printed = capsys.readouterr().out
    assert "2 failed, not counted" in printed
    assert "such as: EnvError: Env.step raised RuntimeError: out of paper" in printed
    assert printed.splitlines()[-1] == f"go on with  tiltyard eval --resume {out}"
    found = summary_in(out)["evaluations"]["eval"]["samples"]
    assert (found["success"]["n"], found["left_out"]) == (3, {"1": 1, "2": 1})
    (tmp_path / "broken").unlink()
    assert main(["eval", "--resume", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.err.splitlines()[0] == f"run folder {out}: 6 of 8 finished before, 2 to play (2 failed)"
    again = [line["episode_id"] for line in read_lines(out / "trajectories.jsonl") if line["attempt"] == 1]
    assert sorted(again) == ["eval-00001-0000", "eval-00001-0001"]
    found = summary_in(out)
    assert (found["episodes"], found["failed"], found["missing"], found["attempts"]) == (8, 0, 0, 2)
    assert found["evaluations"]["eval"]["samples"]["success"]["n"] == 4


def test_a_folder_can_get_more_samples(manifest, server, tmp_path, capsys):
    """What is there counts; only what is new is played. Nothing is left to do the third time."""
    out = tmp_path / "run"
    main(["rollout", manifest, "-n", "1", "--tasks", "2", "--out", str(out), *served(server)])
    assert main(["rollout", "--resume", str(out), "-n", "2", "--tasks", "3"]) == 0
    assert main(["rollout", "--resume", str(out)]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("run folder")]
    assert said == [
        f"run folder {out}: 2 episodes",
        f"run folder {out}: 2 of 6 finished before, 4 to play (4 missing)",
        f"run folder {out}: 6 of 6 finished before, 0 to play",
    ]
    assert summary_in(out)["episodes"] == 6


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--model", "other"], "was begun with model 'm', got 'other'"),
        (["-n", "1"], "was begun with samples 2 and may only grow, got 1"),
        (["--split", "held-out"], "was begun with split 'train', got 'held-out'"),
        (["--set", "training.seed=3"], "training.seed: the run has 0, now it is 3"),
    ],
)
def test_what_decides_the_episodes_does_not_change_on_resume(change, words, manifest, server, tmp_path, capsys):
    """Half of a folder would be of one kind and half of another."""
    out = tmp_path / "run"
    main(["rollout", manifest, "-n", "2", "--tasks", "1", "--out", str(out), *served(server)])
    assert main(["rollout", "--resume", str(out), *change]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--api", "http://localhost:1/v1"], "a served model needs both --api URL and --model NAME"),
        (["--api", "http://localhost:1/v1", "--model", "m", "-k", "0"], "samples must be >= 1, got 0"),
        (["--api", "http://localhost:1/v1", "--model", "m", "--checkpoint", "c"], "a checkpoint is for the manifest's"),
        (
            ["--api", "http://localhost:1/v1", "--model", "m", "--tasks", "9"],
            "only 4 rows are held out by the environment; ask",
        ),
    ],
)
def test_a_command_that_cannot_work_leaves_no_folder(arguments, words, manifest, tmp_path, capsys):
    """One message, exit code 2."""
    assert main(["eval", manifest, "--out", str(tmp_path / "run"), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_folder_of_a_training_is_not_resumed_as_episodes(manifest, tmp_path, capsys):
    """The message says what the folder would have to hold."""
    RunFolder.create(tmp_path / "run", manifest_to_yaml(load_manifest(manifest))).close()
    assert main(["rollout", "--resume", str(tmp_path / "run")]) == 2
    assert "holds no episodes of `tiltyard eval` or `tiltyard rollout`" in capsys.readouterr().err


def test_ctrl_c_keeps_what_is_finished_and_resume_plays_the_rest(manifest, server, read_lines, tmp_path, capsys):
    """Exit code 130 and a command line that goes on; the summary says how far it came."""
    (tmp_path / "stop").write_text("15")
    out = tmp_path / "run"
    command = ["eval", manifest, "-k", "5", "--out", str(out), *served(server, "--concurrency", "2")]
    assert main(command) == 130
    kept = read_lines(out / "trajectories.jsonl")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(f"interrupted after {len(kept)} of 20 episodes")
    assert printed[-1] == f"go on with  tiltyard eval --resume {out}"
    found = summary_in(out)
    assert (found["interrupted"], found["episodes"], found["missing"], found["leaked"]) == (
        True,
        len(kept),
        20 - len(kept),
        0,
    )
    assert 5 <= len(kept) < 20
    assert main(["eval", "--resume", str(out)]) == 0
    lines = read_lines(out / "trajectories.jsonl")
    assert lines[: len(kept)] == kept
    assert len({line["episode_id"] for line in lines}) == len(lines) == 20


class KillsTheServer(SilentEpisodes):
    """Kills the server when 60 episodes are finished, and starts it again where it is told to."""

    def __init__(self, server, *, start):
        self.server, self.start, self.killed = server, start, False

    def episode_finished(self, progress):
        if progress.played == 60:
            self.server.kill()
            self.killed = True
            if self.start:
                self.server.start()


@pytest.fixture
def process():
    """The scripted server as a process that can be killed."""
    started = ScriptedProcess().start()
    yield started
    started.kill()


def play_200(manifest, out, process, *, start, timeout_s):
    loaded = load_manifest(manifest)
    given = {"split": "train", "tasks": 4, "samples": 50, "url": process.base_url, "model": "m", "concurrency": 70}
    request = new_request({**given, "timeout_s": timeout_s})
    observer = KillsTheServer(process, start=start)
    summary = play_manifest(loaded, RunFolder.create(out, manifest_to_yaml(loaded)), request, observer)
    assert observer.killed
    return summary


def test_a_server_that_comes_back_costs_no_episode(manifest, process, read_lines, tmp_path):
    """It is killed in the middle of 200 episodes and started again: the requests that were cut are made again."""
    summary = play_200(manifest, tmp_path / "run", process, start=True, timeout_s=60.0)
    assert (summary["episodes"], summary["failed"], summary["leaked"]) == (200, 0, 0)
    assert len(read_lines(tmp_path / "run" / "trajectories.jsonl")) == 200


def test_a_server_that_stays_away_fails_its_episodes_and_resume_completes_them(
    manifest, process, read_lines, tmp_path, capsys
):
    """The run ends; what was finished is on disk, the rest says why it failed, and only the rest is played again."""
    out = tmp_path / "run"
    summary = play_200(manifest, out, process, start=False, timeout_s=1.0)
    lines = read_lines(out / "trajectories.jsonl")
    whole = {line["episode_id"] for line in lines if not line["failed"]}
    assert len(whole) >= 60
    assert (summary["episodes"], summary["failed"]) == (200, 200 - len(whole))
    assert {(line["ending"], line["reward"]) for line in lines if line["failed"]} == {("api_error", None)}
    assert all(re.search("gave no answer|did not answer", line["error"]) for line in lines if line["failed"])
    process.start()
    assert main(["rollout", "--resume", str(out), "--timeout", "60"]) == 0
    left = 200 - len(whole)
    assert f"{len(whole)} of 200 finished before, {left} to play ({left} failed)" in capsys.readouterr().err
    again = {line["episode_id"] for line in read_lines(out / "trajectories.jsonl") if line["attempt"] == 1}
    assert (len(again), again & whole) == (left, set())
    assert (summary_in(out)["failed"], summary_in(out)["missing"]) == (0, 0)
