"""How long `tiltyard --help` takes, and what `tiltyard check` of a text environment costs, beside Python itself."""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

COMMANDS = {
    "python": ["-c", "pass"],
    "help": ["-m", "tiltyard", "--help"],
    "check": ["-m", "tiltyard", "check", "my_env"],
}


def figures(rounds: int = 7) -> dict[str, Any]:
    """Run the commands in turns; the median of each.

    `help_s` is wall clock, the others are CPU-seconds of the process and all its threads.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path),
        }
        _run(["-m", "tiltyard", "init", "my_env"], folder, environment)
        wall: dict[str, list[float]] = {name: [] for name in COMMANDS}
        cpu: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for _ in range(rounds):
            for name, command in COMMANDS.items():
                began, used = time.perf_counter(), _children_s()
                _run(command, folder, environment)
                wall[name].append(time.perf_counter() - began)
                cpu[name].append(_children_s() - used)
    walls = {name: statistics.median(times) for name, times in wall.items()}
    cpus = {name: statistics.median(times) for name, times in cpu.items()}
    return {
        "help_s": round(walls["help"], 3),
        "help_over_python": round(cpus["help"] / cpus["python"], 2),
        "check_cpu_s": round(cpus["check"], 3),
        "check_over_python": round(cpus["check"] / cpus["python"], 2),
    }


def _run(command: list[str], folder: str, environment: dict[str, str]) -> None:
    subprocess.run([sys.executable, *command], cwd=folder, env=environment, check=True, capture_output=True)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
