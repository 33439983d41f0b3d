"""One sandbox as its server knows it: what was asked for, the box that it has, and until when."""

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tiltyard.sandbox.box import Box
from tiltyard.sandbox.box_baking import Baked
from tiltyard.sandbox.refusal import RefusedError
from tiltyard.sandbox.watching import Watchers

MAX_TIMEOUT_S = 30 * 24 * 3600
"""A sandbox that nobody asks for ends in a month at the latest."""

DEFAULT_TIMEOUT_S = 300

OnTimeout = Literal["kill", "pause"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a create request asks for.

    Attributes:
        template: The template's name.
        timeout_s: Seconds to live.
        envs: Variables of every command.
        metadata: What the sandbox can be found by.
        on_timeout: What becomes of it when its time is over.
        auto_resume: A paused one wakes when it is asked for something.
        keep_memory: False ends its processes when it is paused at the end of its time, and keeps its files.
        network: False takes the network away where the template has it.
    """

    template: str
    timeout_s: int
    envs: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    on_timeout: OnTimeout = "kill"
    auto_resume: bool = False
    keep_memory: bool = True
    network: bool = True


def check_timeout(timeout_s: int) -> None:
    """See that a sandbox can be kept for so long.

    Raises:
        RefusedError: The number is negative, or more than a month.
    """
    if timeout_s < 0:
        raise RefusedError("invalid_argument", f"timeout must be >= 0 seconds, got {timeout_s}")
    if timeout_s > MAX_TIMEOUT_S:
        raise RefusedError("invalid_argument", f"timeout must be <= {MAX_TIMEOUT_S} seconds (30 days), got {timeout_s}")


class LiveSandbox:
    """One sandbox: a box, and what the server knows of it; `number` counts those that the server has made.

    Paused without its memory it has `files`, and its box is dead until it begins again in another.
    """

    def __init__(self, number: int, box: Box, asked: Asked) -> None:
        self.number = number
        self.id = box.id
        self.box = box
        self.asked = asked
        self.token = secrets.token_hex(24)
        self.started_at = int(time.time() * 1000) / 1000  # as clients see it: what they send back is the same
        self.ends_at = self.started_at
        self.paused = False
        self.files: Baked | None = None
        self.watchers = Watchers(box)
        self.changing = asyncio.Lock()

    @property
    def wakes(self) -> bool:
        """True when a request is enough to let it go on; one without its memory waits for a client to connect."""
        return self.asked.auto_resume and self.files is None

    def begin_again(self, box: Box) -> None:
        """Be this box from now on; the files that were kept for it are in it."""
        self.box = box
        self.watchers = Watchers(box)
        self.discard_files()

    def discard_files(self) -> None:
        """Keep no longer what it was to begin again with."""
        files, self.files = self.files, None
        if files is not None:
            files.remove()

    @property
    def state(self) -> str:
        """What the protocol calls its state."""
        return "paused" if self.paused else "running"
