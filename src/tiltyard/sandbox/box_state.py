"""What a sandbox as a whole does and uses: stopped, going on, measured."""

import math
import os
import signal
import time
from pathlib import Path

from tiltyard.errors import BoxError, BoxGoneError
from tiltyard.sandbox.box_link import NONSENSE, BoxLink
from tiltyard.sandbox.box_model import BoxLimits, BoxMetrics
from tiltyard.sandbox.cgroups import GroupOrder


class BoxState:
    """Stops a sandbox, lets it go on, and measures it: with control groups where there are any.

    Attributes:
        paused: True between `pause` and `resume`.
    """

    def __init__(self, link: BoxLink, pid: int, groups: GroupOrder) -> None:
        self.paused = False
        self._link = link
        self._pid = pid
        self._groups = groups
        self._cpu_mark: tuple[float, float] | None = None

    async def pause(self) -> None:
        """Stop everything in it; calls wait until `resume`.

        Raises:
            BoxGoneError: It is dead.
        """
        if self._link.gone is not None:
            raise BoxGoneError(self._link.gone)
        if self.paused:
            return
        if self._groups.freeze:
            self._write(self._groups.freeze)
        else:
            await self._link.call("stop")
            self._send_first(signal.SIGSTOP)
        self.paused = True

    async def resume(self) -> None:
        """Let it go on.

        Raises:
            BoxGoneError: It is dead.
        """
        if self._link.gone is not None:
            raise BoxGoneError(self._link.gone)
        if not self.paused:
            return
        if self._groups.freeze:
            self._write(self._groups.thaw)
        else:
            self._send_first(signal.SIGCONT)
            await self._link.call("go_on")
        self.paused = False

    def _write(self, files: tuple[tuple[str, str], ...]) -> None:
        for file, value in files:
            try:
                Path(file).write_text(value)
            except OSError as error:
                raise BoxGoneError(f"the sandbox ended: {error}") from error

    def _send_first(self, number: int) -> None:
        try:
            os.kill(self._pid, number)
        except ProcessLookupError as error:
            raise BoxGoneError("the sandbox ended") from error

    async def metrics(self, limits: BoxLimits) -> BoxMetrics:
        """What it uses now; CPU since the last time that this was asked.

        Raises:
            BoxError: It is dead or paused.
        """
        if self.paused:
            raise BoxError("a paused sandbox has no metrics; resume it first")
        told = await self._link.call("usage")
        try:
            cpu_s, memory = float(told["cpu_s"]), int(told["memory"])
            disk_used, disk_total = int(told["disk_used"]), int(told["disk_total"])
            if not math.isfinite(cpu_s):
                raise ValueError("no number")
        except NONSENSE as error:
            raise self._link.broke("metrics that make no sense") from error
        cpu_s, memory, cache = self._measured(cpu_s, memory)
        now = time.monotonic()
        before, self._cpu_mark = self._cpu_mark, (now, cpu_s)
        used = 0.0 if before is None or now <= before[0] else (cpu_s - before[1]) / (now - before[0]) * 100
        total = limits.memory_mib << 20
        return BoxMetrics(time.time(), limits.cpus, max(0.0, used), memory, total, cache, disk_used, disk_total)

    def _measured(self, cpu_s: float, memory: int) -> tuple[float, int, int]:
        """The kernel's own count where there is one: CPU seconds, memory without files' cache, that cache."""
        groups = self._groups
        try:
            if groups.memory is not None:
                memory = int(Path(groups.memory).read_text())
            if groups.cpu is not None:
                text = Path(groups.cpu).read_text()
                cpu_s = int(text) / 1e9 if text.strip().isdigit() else int(text.split()[1]) / 1e6
        except OSError:
            return cpu_s, memory, 0
        return cpu_s, memory, 0
