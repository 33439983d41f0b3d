"""`tiltyard sandbox`: what it prints, how it ends, and what it refuses."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from sandbox_left import marked, until

from tiltyard.errors import ConfigurationError
from tiltyard.manifest.yaml_text import read_yaml
from tiltyard.sandbox.template_file import command_templates

COMMAND = [sys.executable, "-m", "tiltyard", "sandbox"]


def refused(*arguments):
    """The error of a command line that cannot be served."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    return done.stderr


TEMPLATES = """
python:
  setup: [echo baked > note]
  limits: {memory_mib: 256, disk_mib: 64}
"""

CLIENT = """
import sys, e2b
url, key, mark = sys.argv[1:]
sandbox = e2b.E2B(api_url=url, sandbox_url=url, api_key=key, retries=0).Sandbox.create("base")
command = sandbox.commands.run(f"echo up; sleep {mark}", background=True)
print(next(iter(command))[0], end="", flush=True)
try:
    command.wait()
except Exception as error:
    print(type(error).__name__)
"""


PASTED = """
import e2b
from tiltyard import AgentEnv
print(e2b.Sandbox.create("base").commands.run("echo by the SDK").stdout, end="")
with AgentEnv("base") as env:
    env.reset()
    print(env.run_command({"command": "echo by AgentEnv"}))
"""


def served(process):
    """The URL and the key that a command prints, and all that it said before them."""
    said = "".join(iter(process.stdout.readline, "Ctrl-C stops it\n"))
    found = re.search(r"^export E2B_API_URL=(\S+) E2B_SANDBOX_URL=\1 E2B_API_KEY=(\S+)$", said, re.MULTILINE)
    assert found, said
    return found[1], found[2], said


@pytest.mark.usefixtures("sandbox_server")  # nothing can be served where that cannot
def test_the_command_says_what_it_found_serves_and_ends_cleanly(tmp_path):
    """Isolation, URL and key are printed in a form that a shell takes; Ctrl-C ends it with code 0."""
    (tmp_path / "t.yaml").write_text(TEMPLATES)
    options = ["--port", "0", "--template", "my-env", "--templates", str(tmp_path / "t.yaml"), "--warm", "0"]
    with subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        url, key, said = served(process)
        assert "Sandboxes share this machine's kernel" in said
        assert "templates: base, my-env, python" in said
        with httpx.Client(base_url=url, headers={"X-API-KEY": key}, timeout=30) as http:
            for template in ("my-env", "python"):
                answer = http.post("/v2/sandboxes", json={"templateID": template})
                assert answer.status_code == 201, answer.text
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
    assert (process.returncode, rest) == (0, "stopped; 2 sandboxes were alive and are ended\n")


@pytest.mark.usefixtures("sandbox_server")
def test_the_line_that_is_printed_is_all_that_the_sdk_needs():
    """Pasted into a shell: E2B's own SDK makes sandboxes and runs commands there, and `AgentEnv` does."""
    with subprocess.Popen([*COMMAND, "--port", "0", "--warm", "0"], stdout=subprocess.PIPE, text=True) as process:
        _, _, said = served(process)
        named = dict(word.split("=", 1) for word in said.rpartition("export ")[2].split())
        clean = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
        client = subprocess.run(
            [sys.executable, "-c", PASTED],
            env={**clean, **named},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        process.send_signal(signal.SIGINT)
    assert (client.stdout, client.returncode) == ("by the SDK\nby AgentEnv\n\n", 0), client.stderr


@pytest.mark.usefixtures("sandbox_server")
def test_a_server_that_is_killed_takes_its_sandboxes_with_it():
    """In the middle of a command, without a chance to clean up: the client is told, and no process is left."""
    mark = f"8{os.getpid()}.25"
    with subprocess.Popen([*COMMAND, "--port", "0", "--warm", "1"], stdout=subprocess.PIPE, text=True) as process:
        url, key, _ = served(process)
        client = [sys.executable, "-c", CLIENT, url, key, mark]
        with subprocess.Popen(client, stdout=subprocess.PIPE, text=True) as playing:
            assert playing.stdout.readline() == "up\n"
            until(lambda: marked(f"sleep\0{mark}") != [])
            process.kill()
            told, _ = playing.communicate(timeout=60)
    assert told.strip().endswith(("Exception", "Error"))
    until(lambda: marked(f"sleep\0{mark}") == [])


def test_what_cannot_be_served_is_told(tmp_path):
    """In one line, with what was given; the code is 2, as for every wrong input."""
    (tmp_path / "list.yaml").write_text("[1]")
    assert "mapping of templates" in refused("--templates", str(tmp_path / "list.yaml"))
    assert "cannot be read" in refused("--templates", str(tmp_path / "none.yaml"))
    assert "disk_mib of a sandbox must be at most half of memory_mib" in refused(
        "--memory-mib", "64", "--disk-mib", "64"
    )


def test_templates_inherit_what_they_do_not_say(tmp_path):
    """Limits and network of the command line are those of every template that has none of its own."""
    (tmp_path / "root").mkdir()
    named = {"mine": {"root": "root", "limits": {"cpus": 2.0}, "network": False, "envs": {"A": "1"}}}
    base, mine = command_templates(named, tmp_path, {"memory_mib": 1024}, network=True)
    assert (base.name, base.root, base.limits.memory_mib, base.network) == ("base", None, 1024, True)
    assert (mine.root, mine.limits.memory_mib, mine.limits.cpus) == (tmp_path / "root", 1024, 2.0)
    assert (mine.network, mine.envs, mine.setup) == (False, {"A": "1"}, ())


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"setups": ["x"]}, "setups"),
        ({"setup": "pip install x"}, "setup"),
        ({"limits": {"memory": 1}}, "limits.memory"),
        ({"envs": {"A": 1}}, "envs.A"),
        ({"root": "no-such-folder"}, "root of template"),
        ("x", "the value"),
    ],
)
def test_a_template_that_cannot_be_is_told_with_its_key(tmp_path, value, said):
    """A typing error is not left out silently."""
    with pytest.raises(ConfigurationError, match=said):
        command_templates({"mine": value}, tmp_path, {}, network=False)


def test_the_templates_of_the_manual_are_templates():
    """What a reader copies from the page is read as it says there."""
    page = (Path(__file__).parents[2] / "docs/sandboxes.md").read_text(encoding="utf-8")
    text = page.partition("## Templates")[2].partition("```text\n")[2].partition("```")[0]
    named = read_yaml(text).value
    named["debian"]["root"] = "/"
    base, *others = command_templates(named, Path(), {}, network=False)
    assert [(each.name, each.network, each.limits.cpus) for each in others] == [
        ("pytest", True, base.limits.cpus),
        ("debian", False, 2.0),
    ]
