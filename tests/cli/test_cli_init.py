"""`tiltyard init`: what it writes can be checked, tested and trained, as it is."""

import subprocess
import sys
from pathlib import Path

import pytest

from tiltyard.cli import main
from tiltyard.testing.model import tiny_model
from tiltyard.testing.tokenizer import byte_tokenizer

KINDS = {"text": (), "tools": ("--tools",)}
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=KINDS)
def made(request, tmp_path, capsys) -> Path:
    """The folder that was written."""
    assert main(["init", str(tmp_path / "mine"), *KINDS[request.param]]) == 0
    capsys.readouterr()
    return tmp_path / "mine"


def test_it_says_what_it_wrote_and_what_is_next(tmp_path, monkeypatch, capsys):
    """The commands can be pasted."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine"]) == 0
    assert capsys.readouterr().out == (
        "mine/env.py                the environment\n"
        "mine/train.yaml            what runs: the environment, the model, how it is trained\n"
        "mine/test_env.py           tests of the environment, without a model\n"
        "mine/manifest.schema.json  lets an editor complete train.yaml\n"
        "next:\n"
        "  tiltyard check mine\n"
        "  python -m pytest mine\n"
        "  tiltyard train mine/train.yaml\n"
    )


def test_the_manual_shows_what_is_printed(tmp_path, monkeypatch, capsys):
    """`docs/commands.md` has these lines; times and sizes differ."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", "my_env"]) == 0
    assert main(["check", "my_env"]) == 0
    shown = (ROOT / "docs" / "commands.md").read_text().splitlines()
    missing = [line for line in capsys.readouterr().out.splitlines() if line not in shown]
    assert [line.split()[0] for line in missing if not line.startswith(("time ", "memory ", "a step ", "needs "))] == []


def test_nothing_is_written_over(made, capsys):
    """A folder with anything in it is refused, and stays as it is."""
    (made / "env.py").write_text("mine")
    assert main(["init", str(made)]) == 2
    assert "is not empty, and nothing is written over; it has env.py, manifest.schema.json" in capsys.readouterr().err
    assert (made / "env.py").read_text() == "mine"
    assert main(["init", str(made / "env.py")]) == 2
    assert "cannot be written: File exists" in capsys.readouterr().err


def test_what_it_wrote_is_ready(made, capsys):
    """Without an error or a warning."""
    assert main(["check", str(made)]) == 0
    out = capsys.readouterr().out
    assert "WARNING" not in out
    assert out.endswith("train.yaml: ready to train\n")


def test_its_tests_pass(made):
    """They are run as a user runs them."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(made)]
    done = subprocess.run(command, cwd=made.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_it_is_written_in_our_own_style(made):
    """What a newcomer reads first is linted like the rest."""
    options = ["--isolated", "--line-length", "120", "--target-version", "py311", "--select", "E,F,I,B,UP,SIM,RET,W"]
    files = [str(made / "env.py"), str(made / "test_env.py")]
    ruff = str(Path(sys.executable).with_name("ruff"))
    for command in (
        [ruff, "check", *options, *files],
        [ruff, "format", "--isolated", "--line-length=120", "--check", *files],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_it_trains(made, tmp_path, capsys):
    """One step with a model of 2 layers, as with the real one."""
    tokenizer = byte_tokenizer("chatml_tools")
    tiny_model(len(tokenizer), context_length=4096).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    small = ["training.steps=1", "training.batch_size=2", "algorithm.group_size=2", "training.eval.tasks=2"]
    small += [f"model.name={tmp_path / 'model'}", "model.train=full", "rollout.max_tokens_per_turn=8"]
    options = [option for value in small for option in ("--set", value)]
    assert main(["train", str(made / "train.yaml"), "--out", str(tmp_path / "run"), *options]) in (0, 1)
    assert "1 of 1 steps" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_trains_the_model_that_it_names(made, tmp_path, capsys):
    """Two steps of the real one; its episodes do not fail."""
    small = ["training.steps=2", "training.batch_size=2", "training.eval.tasks=4", "training.threads=1"]
    options = [option for value in small for option in ("--set", value)]
    assert main(["train", str(made / "train.yaml"), "--out", str(tmp_path / "run"), *options]) == 0
    assert "finished 2 of 2 steps" in capsys.readouterr().out
