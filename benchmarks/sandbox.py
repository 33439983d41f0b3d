"""What sandboxes of the local server cost, through E2B's own SDK over HTTP, beside a bare `bwrap` run.

`python -m benchmarks.sandbox [--live 200]` starts `tiltyard sandbox` as a process of its own and prints, as its last
line, one JSON object. Times are medians of wall-clock milliseconds as the client sees them.

`create_cold_ms` and `create_warm_ms` are creating one sandbox without and with one that is ready; `bwrap_ms` is
running `true` in bubblewrap's namespaces with nothing else, in turns with the cold ones, and `cold_over_bwrap` their
ratio. `run_true_ms` is `commands.run("true")`, a login shell included, and `bare_shell_ms` a plain shell started on
this machine by itself. `create_32_s` is the wall clock of 32 creates at once from 32 that are ready. `commands_per_s`
counts 32 x 20 `echo`s in 32 sandboxes at once. `idle_mib` is what a sandbox that does nothing adds to the memory of
this machine (PSS of all its processes, and what the server grew). `run_200_over_1` and `create_200_over_1` compare
the cost beside 200 live sandboxes with that beside one.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import e2b

from tiltyard.sandbox.isolation import probe, system_mounts

AT_ONCE = 32
ECHOES = 20
TURNS, SETTLE_S = 2, 0.5
"""How often many live at a time; and how long what was begun by making or killing them is waited for."""
BESIDE = ["--memory-mib", "64", "--disk-mib", "16"]
"""Limits are not what memory is used: these only let 200 fit whatever is set aside for them."""


@dataclass
class Server:
    """A server in a process of its own, and the SDK bound to it."""

    pid: int
    sandbox: Any

    def create(self) -> Any:
        return self.sandbox.create("base", timeout=600)


@contextmanager
def served(warm: int) -> Iterator[Server]:
    """Start one with so many sandboxes ready; end it, and all of them."""
    command = [sys.executable, "-m", "tiltyard", "sandbox", "--port", "0", "--warm", str(warm), *BESIDE]
    with subprocess.Popen([*command, "--max-sandboxes", "1000"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = "".join(iter(process.stdout.readline, "Ctrl-C stops it\n"))
        found = re.search(r"E2B_API_URL=(\S+) E2B_SANDBOX_URL=\S+ E2B_API_KEY=(\S+)", said)
        assert found, said
        client = e2b.E2B(api_url=found[1], sandbox_url=found[1], api_key=found[2])
        try:
            yield Server(process.pid, client.Sandbox)
        finally:
            process.terminate()
            process.communicate()


def ms(call: Callable[[], Any]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def at_once(call: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """The same call on every item, each on a thread of its own, all at the same time."""
    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(call, items))


def by_eight(call: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """As `at_once`, eight at a time."""
    return [done for at in range(0, len(items), 8) for done in at_once(call, items[at : at + 8])]


def bare_bwrap() -> Callable[[], Any]:
    """Bubblewrap with all namespaces and this machine's programs, and nothing of ours."""
    bwrap = probe().bwrap
    assert bwrap is not None
    argv = [str(bwrap), "--unshare-all", *system_mounts(), "--proc", "/proc", "--dev", "/dev", "/usr/bin/true"]
    return lambda: subprocess.run(argv, check=True)


def cold(rounds: int) -> dict[str, float]:
    """Creating without a warm pool, in turns with bare bubblewrap."""
    bwrap = bare_bwrap()
    creates, bares = [], []
    with served(0) as server:
        server.create().kill()
        for _ in range(rounds):
            bares.append(ms(bwrap))
            made: list[Any] = []
            creates.append(ms(lambda made=made: made.append(server.create())))
            made[0].kill()
    create, bare = statistics.median(creates), statistics.median(bares)
    return {"create_cold_ms": create, "bwrap_ms": bare, "cold_over_bwrap": create / bare}


def warm(rounds: int) -> dict[str, float]:
    """Creating from a warm pool that has time to fill again, and the shortest command."""
    creates, runs, shells = [], [], []
    with served(2) as server:
        for _ in range(rounds):
            made: list[Any] = []
            creates.append(ms(lambda made=made: made.append(server.create())))
            sandbox = made[0]
            sandbox.commands.run("true")
            for _ in range(3):
                runs.append(ms(lambda: sandbox.commands.run("true")))  # noqa: B023 - called at once
                shells.append(ms(lambda: subprocess.run(["/bin/bash", "--noprofile", "-c", "true"], check=True)))
            sandbox.kill()
            time.sleep(0.2)
    return {
        "create_warm_ms": statistics.median(creates),
        "run_true_ms": statistics.median(runs),
        "bare_shell_ms": statistics.median(shells),
    }


def many() -> dict[str, float]:
    """Thirty-two at once: made, working, and idle."""
    with served(AT_ONCE) as server:
        before = memory_of(server.pid)
        began = time.perf_counter()
        made = at_once(lambda _: server.create(), list(range(AT_ONCE)))
        create_s = time.perf_counter() - began
        wait_for_ready(server.pid, 2 * AT_ONCE)  # those that are ready again count too
        idle = (memory_of(server.pid) - before) / AT_ONCE

        def echo(sandbox: Any) -> None:
            for number in range(ECHOES):
                assert sandbox.commands.run(f"echo {number}").stdout == f"{number}\n"

        began = time.perf_counter()
        at_once(echo, made)
        per_s = AT_ONCE * ECHOES / (time.perf_counter() - began)
    return {"create_32_s": create_s, "commands_per_s": per_s, "idle_mib": idle}


def flat(live: int, rounds: int) -> dict[str, float]:
    """The same work beside one live sandbox and beside many, in turns: what else this machine does is in both."""
    runs: dict[bool, list[float]] = {False: [], True: []}
    creates: dict[bool, list[float]] = {False: [], True: []}
    with served(0) as server:
        first = server.create()
        for turn in range(1 + 2 * TURNS):
            beside = bool(turn % 2)
            others = by_eight(lambda _: server.create(), list(range(live if beside else 0)))
            time.sleep(SETTLE_S)
            for _ in range(rounds):
                runs[beside] += [ms(lambda: first.commands.run("true")) for _ in range(3)]
                made: list[Any] = []
                creates[beside].append(ms(lambda made=made: made.append(server.create())))
                made[0].kill()
            by_eight(lambda one: one.kill(), others)
    return {
        "run_200_over_1": statistics.median(runs[True]) / statistics.median(runs[False]),
        "create_200_over_1": statistics.median(creates[True]) / statistics.median(creates[False]),
    }


def family(pid: int) -> list[int]:
    """A process and all that it started, and what those started."""
    children: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(entry))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def wait_for_ready(pid: int, boxes: int, within_s: float = 60.0) -> None:
    """Wait until so many sandboxes are there: the server, its keeper, and two processes a sandbox."""
    end = time.monotonic() + within_s
    while len(family(pid)) < 2 + 2 * boxes and time.monotonic() < end:
        time.sleep(0.2)


def memory_of(pid: int) -> float:
    """MiB of a server and its sandboxes: their share of what is shared (PSS), or all they map where that is hidden."""
    total = 0.0
    for each in family(pid):
        try:
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
            total += int(re.findall(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[0]) / 1024
        except PermissionError:
            total += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        except (OSError, IndexError):
            continue
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="how often each figure is taken")
    parser.add_argument("--live", type=int, default=200, help="how many sandboxes live at a time")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    for part in (
        lambda: cold(arguments.rounds),
        lambda: warm(arguments.rounds),
        many,
        lambda: flat(arguments.live, arguments.rounds),
    ):
        found = part()
        figures |= found
        for name, value in found.items():
            print(f"{name:20} {value:10.2f}")
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
