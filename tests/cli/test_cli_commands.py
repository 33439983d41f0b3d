"""What the commands print, and the codes that they exit with."""

import json
import subprocess
import sys

import pytest

from tiltyard import __version__
from tiltyard.cli import main


def test_help_names_every_command_and_loads_nothing_heavy():
    """`tiltyard --help` is asked for often, and must not wait for torch."""
    code = (
        "import sys; from tiltyard.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\nprint(*sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in ("init", "train", "eval", "rollout", "export", "check", "schema", "demo"):
        assert f"  {command}" in found.stdout
    assert not {"torch", "transformers", "numpy", "pydantic", "yaml", "rich"} & set(found.stdout.split())


def test_version(capsys):
    """The version of the package."""
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"tiltyard {__version__}\n"


def test_a_broken_manifest_is_one_message_and_exit_code_2(tmp_path, capsys):
    """No traceback: the message is for whoever wrote the file."""
    (tmp_path / "m.yaml").write_text("environment: {env_type: rollout, entrypoint: 'a:b'}\nmodel: {nme: x}\n")
    assert main(["train", str(tmp_path / "m.yaml")]) == 2
    assert capsys.readouterr().err == (
        f"tiltyard: {tmp_path}/m.yaml: 2 problems\n"
        "  model.nme: unknown key; did you mean model.name?\n"
        "  model.name: is required and not given\n"
    )


def test_train_needs_a_manifest_or_a_run(capsys):
    """Both ways are named."""
    assert main(["train"]) == 2
    assert capsys.readouterr().err == "tiltyard: give a manifest, or --resume RUN to go on with a run\n"


def test_train_prints_its_steps_and_what_came_of_it(write_manifest, tmp_path, capsys):
    """Progress goes to standard error, the summary to standard output."""
    run = tmp_path / "run"
    assert main(["train", str(write_manifest()), "--out", str(run), "--set", "training.steps=2"]) == 0
    printed = capsys.readouterr()
    assert printed.err.splitlines()[0] == f"run folder {run}"
    assert [line.split()[1] for line in printed.err.splitlines() if line.startswith("step ")] == ["1/2", "2/2"]
    assert printed.out.startswith("finished 2 of 2 steps in ")
    assert "leaked=0" in printed.out
    assert "tokens     clean: " in printed.out


ALWAYS_BROKEN = """
class Env:
    dataset_size = 20

    def reset(self, seed=None, row_index=None, evaluation=None):
        return "go on", {}

    def step(self, action):
        raise OSError("the disk is gone")
"""


def test_a_run_whose_episodes_all_failed_is_no_success(manifest_in, tmp_path, capsys):
    """A pipeline that looks at the exit code must not take it for a trained model."""
    path = manifest_in(
        tmp_path,
        ALWAYS_BROKEN,
        environment="{env_type: rollout, entrypoint: 'env.py:Env', max_turns: 1}",
        training="{steps: 1, batch_size: 1, learning_rate: 1e-3, eval: {tasks: 0}}",
    )
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 1
    out = capsys.readouterr().out
    assert out.startswith("NOTHING WAS LEARNED in 1 of 1 steps")
    assert "OSError: the disk is gone" in out


def test_a_folder_is_never_trained_over(write_manifest, tmp_path, capsys):
    """The second run with the same name says how to go on."""
    command = ["train", str(write_manifest()), "--out", str(tmp_path / "run"), "--set", "training.steps=1"]
    assert (main(command), main(command)) == (0, 2)
    assert "is there already; resume that run with --resume, or give another --out" in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on_and_resume_does(write_manifest, tmp_path, capsys):
    """Exit code 130, and a command line that finishes the run."""
    (tmp_path / "stop").write_text("3")
    run = tmp_path / "run"
    assert main(["train", str(write_manifest()), "--out", str(run)]) == 130
    out = capsys.readouterr().out
    assert out.startswith("interrupted after 0 of 3 steps")
    assert out.splitlines()[-1] == f"go on with  tiltyard train --resume {run}"
    assert main(["train", "--resume", str(run)]) == 0
    assert capsys.readouterr().out.startswith("finished 3 of 3 steps")


def test_eval_plays_the_held_out_tasks_with_what_was_learned(write_manifest, tmp_path, capsys):
    """A run folder stands for its newest checkpoint; the figures are in a folder of their own."""
    path, run = write_manifest(), tmp_path / "run"
    main(["train", str(path), "--out", str(run), "--set", "training.eval.temperature=0"])
    trained = json.loads((run / "summary.json").read_text())["eval_after"]
    command = ["eval", str(path), "--set", "training.eval.temperature=0", "--out"]
    assert main([*command, str(tmp_path / "one"), "--checkpoint", str(run)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"folder     {tmp_path}/one"
    found = json.loads((tmp_path / "one" / "summary.json").read_text())["evaluations"]["eval"]
    assert (found["mean"], found["step"], found["turns"]) == (trained["mean"], 3, trained["turns"])
    assert main([*command, str(tmp_path / "two"), "--checkpoint", str(tmp_path)]) == 2
    assert "is no checkpoint, and holds none" in capsys.readouterr().err


def test_eval_of_the_local_model_goes_on_after_ctrl_c(write_manifest, read_lines, tmp_path, capsys):
    """Several samples of each task, no two alike; what was finished is not played again."""
    (tmp_path / "stop").write_text("6")
    out, path = tmp_path / "run", str(write_manifest())
    assert main(["eval", path, "-k", "3", "--out", str(out), "--concurrency", "2"]) == 130
    kept = read_lines(out / "trajectories.jsonl")
    assert main(["eval", "--resume", str(out)]) == 0
    lines = read_lines(out / "trajectories.jsonl")
    assert (lines[: len(kept)], len(lines), len({line["episode_id"] for line in lines})) == (kept, 12, 12)
    assert len({tuple(line["ids"]) for line in lines}) > 4
    printed = capsys.readouterr().out
    assert "finished 12 of 12 episodes" in printed
    assert "pass@2" in printed
    assert "tokens     " in printed
    assert "clean: " in printed


def test_check_says_that_an_environment_is_sound(capsys):
    """An entrypoint alone is enough."""
    assert main(["check", "tiltyard.testing.guess:GuessEnv"]) == 0
    assert "GuessEnv is sound: 0 errors, 0 warnings" in capsys.readouterr().out.splitlines()


def test_check_of_a_faulty_environment_exits_with_1(write_manifest, capsys):
    """A manifest is checked with its environment and its `env_config`, without the model."""
    path = write_manifest(
        environment="{env_type: rollout, entrypoint: 'tiltyard.testing.faulty:FaultyEnv', max_turns: 2, "
        "env_config: {fault: reward_nan}}",
        model="{name: no/such-model}",
    )
    assert main(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{path}: the manifest is sound; 2 turns, no rows\n")
    assert "FaultyEnv is not sound" in out


def test_set_is_refused_without_a_manifest(capsys):
    """There is nothing that it could change."""
    assert main(["check", "tiltyard.testing.guess:GuessEnv", "--set", "training.steps=3"]) == 2
    assert "--set changes a manifest" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "train", "rollout"])
def test_an_error_in_the_environments_file_is_one_message(write_manifest, monkeypatch, tmp_path, capsys, command):
    """It names the file and the line; nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    assert main([command, str(write_manifest("1 / 0"))]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tiltyard: environment.entrypoint: importing ")
    assert error.endswith(f"raised ZeroDivisionError: division by zero ({tmp_path}/env.py, line 1)\n")
    assert not list(tmp_path.glob("runs/*"))


def test_an_environment_that_cannot_be_made_is_one_message(write_manifest, capsys):
    """What its constructor raises is said with its place, not as a traceback through ours."""
    assert main(["check", str(write_manifest("class Env:\n    def __init__(self):\n        1 / 0\n"))]) == 2
    assert capsys.readouterr().err.endswith("env.py, line 3)\n")
