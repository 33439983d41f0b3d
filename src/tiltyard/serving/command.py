"""A server in the foreground, until Ctrl-C or a signal to end."""

import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from tiltyard.serving.server import resolve_env


def serve_until_stopped(spec: str, env_config: Mapping[str, Any], say: Callable[[str], object], **options: Any) -> None:
    """Serve as `resolve_env` does, say where, and stop cleanly at the first SIGINT or SIGTERM; a second ends at once.

    Args:
        spec: As for `resolve_env`.
        env_config: As for `resolve_env`.
        say: Shows a line to the user.
        options: The keyword arguments of `resolve_env`.

    Raises:
        ConfigurationError: As `resolve_env`.
        EnvError: As `resolve_env`.
    """
    url, server = resolve_env(spec, env_config, **options)
    stopping = threading.Event()
    before = {}

    def stop(number: int, at: FrameType | None) -> None:
        del at
        signal.signal(number, before[number])
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, stop)
    say(f"serving {spec} at {url} for {server.max_sessions} sessions at a time; Ctrl-C stops it")
    try:
        stopping.wait()
    finally:
        report = server.stop()
        say(f"stopped: {report.sessions} sessions, leaked={report.leaked}")
