"""`tiltyard sandbox`: a server of sandboxes in the foreground, until Ctrl-C or a signal to end."""

import signal
import threading
from collections.abc import Callable
from types import FrameType

from tiltyard.sandbox.server import LocalSandboxServer


def serve_until_stopped(server: LocalSandboxServer, say: Callable[[str], object]) -> None:
    """Say what was found and where the server is, and end it at the first SIGINT or SIGTERM; a second ends at once.

    Args:
        server: It runs; it is closed here.
        say: Shows a line to the user.
    """
    stopping = threading.Event()
    before = {}

    def stop(number: int, at: FrameType | None) -> None:
        del at
        signal.signal(number, before[number])
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, stop)
    try:
        say(f"isolation: {server.isolation.describe()}")
        say(f"templates: {', '.join(server.templates)}")
        say(f"export E2B_API_URL={server.url} E2B_SANDBOX_URL={server.url} E2B_API_KEY={server.api_key}")
        say("Ctrl-C stops it")
        stopping.wait()
    finally:
        live = server.live
        server.close()
        say(f"stopped; {live} sandboxes were alive and are ended")
