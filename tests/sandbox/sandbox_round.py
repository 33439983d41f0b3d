"""What a client of any version of the SDK does with a sandbox, as a program: `python sandbox_round.py URL KEY`.

It prints one JSON object: the version of the SDK, and what each step gave.
"""

import json
import sys
from importlib.metadata import version

import e2b


def play(url: str, key: str) -> dict:
    options = {"api_url": url, "sandbox_url": url, "api_key": key}
    sandbox = e2b.Sandbox.create("base", timeout=60, metadata={"round": "1"}, envs={"A": "1"}, **options)
    told = {"e2b": version("e2b"), "listed": sandbox.sandbox_id in names(options)}
    told["stdout"] = sandbox.commands.run("echo $A; pwd").stdout
    try:
        sandbox.commands.run("echo out; echo err >&2; exit 3")
    except e2b.CommandExitException as error:
        told["exit"] = [error.exit_code, error.stdout, error.stderr]
    try:
        sandbox.commands.run("sleep 60", timeout=0.3)
    except e2b.TimeoutException:
        told["timeout"] = True
    command = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.send_stdin(command.pid, "fed")
    told["fed"] = next(iter(command))[0]
    told["killed"] = [command.kill(), command.pid in [process.pid for process in sandbox.commands.list()]]
    sandbox.files.write("d/f", "grüße")
    told["files"] = [sandbox.files.read("d/f"), sandbox.files.exists("no"), [e.path for e in sandbox.files.list("d")]]
    sandbox.set_timeout(100)
    sandbox.pause(keep_memory=False)
    e2b.Sandbox.connect(sandbox.sandbox_id, **options)
    told["kept"] = sandbox.files.exists("d/f")
    sandbox.pause()
    told["paused"] = [sandbox.is_running(), e2b.Sandbox.connect(sandbox.sandbox_id, **options).is_running()]
    told["ended"] = [sandbox.kill(), sandbox.is_running(), sandbox.sandbox_id in names(options)]
    try:
        sandbox.commands.run("true")
    except e2b.TimeoutException as error:
        told["gone"] = "was not found" in str(error)
    return told


def names(options: dict) -> list[str]:
    query = e2b.SandboxQuery(metadata={"round": "1"})
    return [info.sandbox_id for info in e2b.Sandbox.list(query=query, **options).next_items()]


if __name__ == "__main__":
    print(json.dumps(play(sys.argv[1], sys.argv[2])))
