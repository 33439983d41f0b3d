"""What a user does wrong is one message and a code that says so: never a traceback, never silence."""

import os
import shlex
import subprocess
import sys

import pytest

from tiltyard import resolve_env, train_llm_rollout
from tiltyard.cli import main
from tiltyard.errors import ConfigurationError
from tiltyard.train.observer import SilentObserver

EXITS = {
    "at import": "import sys\nsys.exit(0)\n",
    "when it is made": "class Env:\n    def __init__(self):\n        raise SystemExit(0)\n",
    "by the builtin": (
        "class Env:\n    max_turns = 1\n\n    def reset(self, seed=None):\n        exit(0)\n\n"
        "    def step(self, action):\n        return '', 0.0, True, False, {}\n"
    ),
}


@pytest.mark.parametrize("command", ["check", "train", "rollout"])
@pytest.mark.parametrize("when", EXITS)
def test_an_environment_that_exits_does_not_end_the_command_as_a_success(
    write_manifest, monkeypatch, tmp_path, capsys, when, command
):
    """`sys.exit(0)` in a file that is loaded is told, with its place; the command's code is not the environment's."""
    monkeypatch.chdir(tmp_path)
    assert main([command, str(write_manifest(EXITS[when]))]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"tiltyard: {tmp_path}/env.py, line ")
    assert "asked Python to exit (SystemExit: 0)" in error


@pytest.mark.parametrize("command", [["serve", "a:b"], ["sandbox"]])
@pytest.mark.parametrize("port", ["65536", "-1", "http"])
def test_a_port_that_is_none_is_refused(capsys, command, port):
    """Before anything is loaded or bound."""
    with pytest.raises(SystemExit) as ended:
        main([*command, f"--port={port}"])
    assert ended.value.code == 2
    assert f"argument --port: must be a whole number from 0 to 65535, got '{port}'" in capsys.readouterr().err


def test_what_is_printed_to_be_copied_can_be_copied(write_manifest, monkeypatch, tmp_path, capsys):
    """A folder whose name has a space is quoted where it stands in a command."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", "my env"]) == 0
    told = capsys.readouterr().out.partition("next:\n")[2].splitlines()
    assert [shlex.split(line)[-1] for line in told] == ["my env", "my env", "my env/train.yaml"]
    (tmp_path / "stop").write_text("3")
    run = tmp_path / "run one"
    assert main(["train", str(write_manifest()), "--out", str(run)]) == 130
    assert shlex.split(capsys.readouterr().out.splitlines()[-1])[-3:] == ["train", "--resume", str(run)]


def test_an_evaluation_is_not_trained_over(write_manifest, tmp_path, capsys):
    """`train --resume` on the folder of an evaluation would write another summary over its figures."""
    out = tmp_path / "found"
    assert main(["eval", str(write_manifest()), "--out", str(out)]) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    capsys.readouterr()
    assert main(["train", "--resume", str(out)]) == 2
    assert capsys.readouterr().err == (
        f"tiltyard: {out} holds an evaluation or a rollout, and no run to go on with; give the folder of a run, or "
        "begin one with --out\n"
    )
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_an_evaluation_is_not_trained_over_from_python(write_manifest, tmp_path):
    """As the command line refuses it."""
    manifest, out = write_manifest(), tmp_path / "found"
    assert main(["eval", str(manifest), "--out", str(out)]) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for config in (None, manifest):
        with pytest.raises(ConfigurationError, match="holds an evaluation or a rollout"):
            train_llm_rollout(config, out=out, resume=True, observer=SilentObserver())
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


class Plain:
    """An environment that can be served."""

    max_turns = 1

    def reset(self, seed=None):
        return "", {}

    def step(self, action):
        return "", 0.0, True, False, {}


@pytest.mark.parametrize("port", [65536, 99999, -1])
def test_a_port_that_is_none_is_refused_from_python(port):
    """As one that is in use is."""
    with pytest.raises(ConfigurationError, match=f"port={port} cannot be bound: .*port=0 takes a free one"):
        resolve_env(Plain, port=port)


@pytest.mark.parametrize("command", ["eval", "rollout", "train"])
@pytest.mark.parametrize("damage", ["nope", "[1]"])
def test_a_damaged_run_file_is_told(write_manifest, tmp_path, capsys, command, damage):
    """With its name, and nothing is played."""
    out = tmp_path / "found"
    assert main(["rollout", str(write_manifest()), "--tasks", "1", "--out", str(out)]) == 0
    (out / "run.json").write_text(damage)
    capsys.readouterr()
    assert main([command, "--resume", str(out)]) == 2
    assert capsys.readouterr().err.startswith(f"tiltyard: {out}/run.json is damaged")


@pytest.mark.parametrize("command", ["train", "eval"])
def test_no_folder_is_left_where_the_model_library_is_not_there(write_manifest, tmp_path, command):
    """It is loaded before the folder is made: Ctrl-C in those seconds leaves nothing behind either."""
    out = tmp_path / "run"
    code = "import sys; sys.modules['torch'] = None; from tiltyard.cli import main; sys.exit(main(sys.argv[1:]))"
    made = [sys.executable, "-c", code, command, str(write_manifest()), "--out", str(out)]
    ended = subprocess.run(made, capture_output=True, text=True, check=False)
    assert (ended.returncode, out.exists()) == (2, False)
    assert ended.stderr.startswith("tiltyard: ")


ODD_ENV = """
class Env:
    max_turns = 1

    def reset(self, seed=None):
        return "go on", {}

    def step(self, action):
        raise OSError("gone: \\ud800 \\u00e9")
"""


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_what_a_terminal_cannot_show_is_shown_as_its_escape(tmp_path, encoding):
    """An environment may say anything, and a log may be ASCII: neither ends a command."""
    (tmp_path / "env.py").write_text(ODD_ENV)
    found = subprocess.run(
        [sys.executable, "-m", "tiltyard", "check", f"{tmp_path}/env.py:Env"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        check=False,
    )
    assert (found.returncode, found.stderr) == (1, b"")
    assert b"Env.step raised OSError: gone: \\ud800" in found.stdout
