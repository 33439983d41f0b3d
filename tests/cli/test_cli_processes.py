"""`torchrun` starts several processes of `tiltyard train`, and the run is that of one."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from tiltyard.rollout.trace import read_traces
from tiltyard.train.checkpoint import newest_checkpoint

TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port")
ENVIRONMENT = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def port():
    """A port of the loopback that nobody uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


RUNS = ("one", "two")


def together(port, *arguments):
    """The command line of two processes."""
    return [sys.executable, *TORCHRUN, port, "-m", "tiltyard", *map(str, arguments)]


def finished(command):
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def weights(folder):
    return load_file(newest_checkpoint(folder / "checkpoints") / "weights.safetensors")


def test_two_processes_train_as_one(write_manifest, train, read_lines, tmp_path, port):
    """The same episodes in one folder, the same losses and evaluations, and the words of one."""
    path = write_manifest(training="{steps: 2, batch_size: 2, learning_rate: 1e-3, eval: {tasks: 4}}")
    alone = train(path, tmp_path / "one")
    said = finished(together(port, "train", path, "--out", tmp_path / "two"))
    assert said.count("leaked=0") == 1
    summary = json.loads((tmp_path / "two" / "summary.json").read_text())
    for name in ("steps_done", "episodes", "failed", "leaked", "interrupted"):
        assert summary.get(name) == alone.get(name)
    for name in ("episodes", "turns", "tokens", "sampled", "extended", "forks", "compared"):
        assert summary["ledger"].get(name) == alone["ledger"].get(name)
    for phase in ("eval_before", "eval_after"):
        assert summary[phase]["mean"] == pytest.approx(alone[phase]["mean"], abs=1e-6)
    for one, two in zip(*(read_lines(tmp_path / run / "metrics.jsonl") for run in RUNS), strict=True):
        assert two["loss"] == pytest.approx(one["loss"], abs=1e-6)
        assert two["reward"] == pytest.approx(one["reward"], abs=1e-6)
        assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)
    one, two = ({t["episode_id"]: t["ids"] for t in read_traces(tmp_path / run / "trajectories.jsonl")} for run in RUNS)
    assert one == two
    one, two = (weights(tmp_path / run) for run in RUNS)
    assert max((one[name] - two[name]).abs().max() for name in one) < 1e-5


def test_a_folder_that_is_there_is_refused_in_all_processes(write_manifest, tmp_path, port):
    """One message, and none waits."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "x").touch()
    command = together(port, "train", write_manifest(), "--out", tmp_path / "run")
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode != 0
    assert "is there already" in done.stderr


def test_a_killed_process_ends_the_run_and_its_last_step_is_gone_on_with(write_manifest, tmp_path, port):
    """The other one does not wait for it, says what happened, and keeps what is finished."""
    path = write_manifest(training="{steps: 400, batch_size: 2, learning_rate: 1e-3, save_every: 1, eval: {tasks: 0}}")
    run = tmp_path / "run"
    whole = {**ENVIRONMENT, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, "-m", "tiltyard", "train", str(path), "--out", str(run)]
    first, second = (
        subprocess.Popen(command, env={**whole, "RANK": rank, "LOCAL_RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    )
    try:
        deadline = time.monotonic() + 120
        while not (run / "checkpoints" / "step-00000002").exists():
            assert time.monotonic() < deadline, "no second step was taken"
            time.sleep(0.05)
        second.kill()
        _, said = first.communicate(timeout=120)
    finally:
        first.kill()
        second.communicate()
    assert first.returncode != 0
    assert "torch.distributed raised" in said
    done = int(newest_checkpoint(run / "checkpoints").name.removeprefix("step-"))
    go_on = [sys.executable, "-m", "tiltyard", "train", "--resume", str(run), "--set", f"training.steps={done + 1}"]
    subprocess.run(go_on, env=ENVIRONMENT, check=True, timeout=100, capture_output=True)
    assert json.loads((run / "summary.json").read_text())["steps_done"] == done + 1


def test_two_processes_learn_rows_as_one(write_manifest, train, read_lines, tmp_path, port):
    """The same losses and evaluations, in one folder."""
    rows = ({"prompt": f"say {i}", "response": f"it is {i % 3}"} for i in range(30))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = write_manifest(
        environment="{env_type: dataset, objective: sft, dataset: rows.jsonl, train_test_split: 0.8}",
        algorithm="{}",
        rollout="{}",
        training="{steps: 4, batch_size: 5, learning_rate: 1e-2}",
    )
    alone = train(path, tmp_path / "one")
    finished(together(port, "train", path, "--out", tmp_path / "two"))
    summary = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert summary["eval_after"]["mean"] == pytest.approx(alone["eval_after"]["mean"], abs=1e-5)
    for one, two in zip(*(read_lines(tmp_path / run / "metrics.jsonl") for run in RUNS), strict=True):
        assert two["loss"] == pytest.approx(one["loss"], abs=1e-6)


def test_processes_are_left_before_the_interpreter_is_taken_down(port):
    """A thread of gloo that still lets go of a tensor then would abort the process, its work done."""
    script = (
        "import atexit, torch.distributed as dist\n"
        "atexit.register(lambda: print('left' if not dist.is_initialized() else 'still there'))\n"
        "from tiltyard.train.torch_processes import join\n"
        "assert join() is not None and join() is not None and dist.is_initialized()\n"
    )
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, env={**ENVIRONMENT, **alone}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr
