"""The sandboxes of one server: which box each has, until when, and what becomes of it then."""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any

from tiltyard.errors import BoxError, BoxGoneError, ConfigurationError
from tiltyard.sandbox.box import Box
from tiltyard.sandbox.box_maker import BoxMaker
from tiltyard.sandbox.box_model import Template
from tiltyard.sandbox.live_sandbox import Asked, LiveSandbox, check_timeout
from tiltyard.sandbox.refusal import RefusedError, no_such_sandbox
from tiltyard.sandbox.snapshots import Snapshot, Snapshots

OFFLINE = ":offline"
"""Follows the name of the template that is another one without its network."""


def with_offline(templates: Iterable[Template]) -> list[Template]:
    """These templates, and for those with a network the same without."""
    offline = [replace(each, name=each.name + OFFLINE, network=False) for each in templates if each.network]
    return [*templates, *offline]


class Sandboxes:
    """All of them. Everything runs on one event loop."""

    def __init__(self, maker: BoxMaker, templates: Mapping[str, Template], max_sandboxes: int) -> None:
        self.snapshots = Snapshots()
        self._templates = templates
        self._maker = maker
        self._max = max_sandboxes
        self._live: dict[str, LiveSandbox] = {}
        self._making = 0
        self._made = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._live)

    def all(self) -> list[LiveSandbox]:
        """Those there are, oldest first."""
        return list(self._live.values())

    def get(self, sandbox_id: str) -> LiveSandbox:
        """The sandbox of this id.

        Raises:
            RefusedError: There is none.
        """
        found = self.find(sandbox_id)
        if found is None:
            raise no_such_sandbox(sandbox_id)
        return found

    def find(self, sandbox_id: str) -> LiveSandbox | None:
        """The sandbox of this id, if there is one."""
        return self._live.get(sandbox_id)

    async def create(self, asked: Asked) -> LiveSandbox:
        """Take a box.

        Raises:
            RefusedError: There is no such template, or no room, or the box cannot be made, or kept for so long.
        """
        check_timeout(asked.timeout_s)
        template, snapshot = self._source(asked.template)
        if len(self._live) + self._making >= self._max:
            raise RefusedError("resource_exhausted", f"the server has {self._max} sandboxes, and takes no more")
        self._making += 1
        try:
            box = await self._box(asked, template, snapshot)
        finally:
            self._making -= 1
        if self._closed:
            await box.kill()
            raise RefusedError("unavailable", "the server is closing")
        self._made += 1
        sandbox = LiveSandbox(self._made, box, asked)
        self._live[sandbox.id] = sandbox
        self.set_timeout(sandbox, asked.timeout_s)
        self._spawn(self._bury(sandbox))
        return sandbox

    def _source(self, asked: str) -> tuple[Template, Snapshot | None]:
        """What is meant by a template's name or a snapshot's."""
        snapshot = self.snapshots.find(asked)
        template = self._templates.get(asked) if snapshot is None else snapshot.template
        if template is None:
            raise self._no_template(asked)
        return template, snapshot

    async def _box(self, asked: Asked, template: Template, snapshot: Snapshot | None) -> Box:
        name = template.name + OFFLINE if template.network and not asked.network else template.name
        try:
            return await self._maker.take(name, asked.envs, files=None if snapshot is None else snapshot.files)
        except (BoxGoneError, ConfigurationError) as error:
            if snapshot is not None and snapshot not in self.snapshots:
                raise self._no_template(asked.template) from error
            raise RefusedError(
                "internal", f"a sandbox of template {asked.template!r} cannot be made: {error}"
            ) from error

    def _no_template(self, asked: str) -> RefusedError:
        known = ", ".join(repr(name) for name in sorted(self._templates))
        return RefusedError("not_found", f"there is no template {asked!r} on this server; it has {known}")

    def set_timeout(self, sandbox: LiveSandbox, timeout_s: int) -> None:
        """Let it end so many seconds from now; 0 ends it at once.

        Raises:
            RefusedError: The number is negative, or more than a month.
        """
        check_timeout(timeout_s)
        sandbox.ends_at = time.time() + timeout_s
        self._stop_timer(sandbox)
        if not sandbox.paused:
            self._timers[sandbox.id] = asyncio.get_running_loop().call_later(timeout_s, self._expire, sandbox)

    async def kill(self, sandbox: LiveSandbox) -> None:
        """End it; streams of its commands are cut."""
        self._forget(sandbox)
        sandbox.discard_files()
        await sandbox.box.kill()

    async def pause(self, sandbox: LiveSandbox, *, memory: bool = True) -> None:
        """Stop its processes where they are, or end them and keep the files alone; it has no time-out then.

        Raises:
            RefusedError: It is paused, or gone, or its files cannot be kept.
        """
        async with sandbox.changing:
            await self._pause(sandbox, memory=memory)

    async def _pause(self, sandbox: LiveSandbox, *, memory: bool) -> None:
        self.get(sandbox.id)
        if sandbox.paused:
            raise RefusedError("failed_precondition", f"the sandbox {sandbox.id!r} is already paused")
        if memory:
            await sandbox.box.pause()
        else:
            await self._lay_down(sandbox)
        sandbox.paused = True
        self._stop_timer(sandbox)

    async def resume(self, sandbox: LiveSandbox, timeout_s: int, *, memory: bool = True) -> bool:
        """Let it go on, for so long from now; True when it was paused.

        A running one is not shortened. Without memory, one that was paused begins again with its files.

        Raises:
            RefusedError: It is gone, cannot begin again, or the time-out is no number of seconds.
        """
        check_timeout(timeout_s)
        async with sandbox.changing:
            self.get(sandbox.id)
            was_paused = sandbox.paused
            if was_paused:
                if sandbox.files is None:
                    await sandbox.box.resume()
                    if not memory:
                        await self._drop_memory(sandbox)
                if sandbox.files is not None:
                    await self._begin_again(sandbox)
                sandbox.paused = False
            if was_paused or time.time() + timeout_s > sandbox.ends_at:
                self.set_timeout(sandbox, timeout_s)
            return was_paused

    async def take_snapshot(self, sandbox: LiveSandbox, name: str | None) -> Snapshot:
        """Keep a sandbox's files as they are now.

        Raises:
            RefusedError: It is paused, its files cannot be kept, or there are too many snapshots.
        """
        async with sandbox.changing:
            self.get(sandbox.id)
            self.snapshots.check(name, self._templates)
            if sandbox.paused:
                raise RefusedError("failed_precondition", f"the sandbox {sandbox.id!r} is paused; connect to it first")
            try:
                files = await self._maker.keep_files(sandbox.box)
            except ConfigurationError as error:
                raise RefusedError("failed_precondition", str(error)) from error
            return self.snapshots.add(sandbox.id, name, sandbox.box.template, files)

    async def _lay_down(self, sandbox: LiveSandbox) -> None:
        """Keep its files and end its box."""
        try:
            files = await self._maker.keep_files(sandbox.box, still=True)
        except ConfigurationError as error:
            raise RefusedError("failed_precondition", str(error)) from error
        if sandbox.id not in self._live:
            files.remove()
            raise no_such_sandbox(sandbox.id)
        sandbox.files = files
        sandbox.paused = True
        await sandbox.box.kill("the sandbox was paused without its memory")

    async def _drop_memory(self, sandbox: LiveSandbox) -> None:
        try:
            await self._lay_down(sandbox)
        except RefusedError:
            if sandbox.id in self._live:
                await sandbox.box.pause()
            raise

    async def _begin_again(self, sandbox: LiveSandbox) -> None:
        """Give it a new box with the files of the one that it had."""
        try:
            box = await self._maker.take(sandbox.box.template.name, sandbox.asked.envs, files=sandbox.files)
        except (BoxGoneError, ConfigurationError) as error:
            self.get(sandbox.id)
            raise RefusedError("internal", f"the sandbox {sandbox.id!r} cannot begin again: {error}") from error
        if sandbox.id not in self._live:
            await box.kill()
            raise no_such_sandbox(sandbox.id)
        sandbox.begin_again(box)
        self._spawn(self._bury(sandbox))

    async def close(self) -> None:
        """End all of them."""
        self._closed = True
        await asyncio.gather(*(self.kill(sandbox) for sandbox in self.all()))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _expire(self, sandbox: LiveSandbox) -> None:
        self._stop_timer(sandbox)
        self._spawn(self._end_of_time(sandbox))

    async def _end_of_time(self, sandbox: LiveSandbox) -> None:
        if sandbox.asked.on_timeout == "kill":
            await self.kill(sandbox)
            return
        async with sandbox.changing:
            if sandbox.id not in self._live or sandbox.id in self._timers or sandbox.paused:
                return  # it was killed, given more time or paused in the meantime
            try:
                await self._pause(sandbox, memory=sandbox.asked.keep_memory)
            except (RefusedError, BoxError):
                await self.kill(sandbox)  # one that cannot be paused would live for ever

    async def _bury(self, sandbox: LiveSandbox) -> None:
        """Forget a sandbox whose box dies by itself."""
        box = sandbox.box
        await box.wait_dead()
        if sandbox.id in self._live and sandbox.box is box and sandbox.files is None:
            await self.kill(sandbox)

    def _forget(self, sandbox: LiveSandbox) -> None:
        self._live.pop(sandbox.id, None)
        self._stop_timer(sandbox)

    def _stop_timer(self, sandbox: LiveSandbox) -> None:
        timer = self._timers.pop(sandbox.id, None)
        if timer is not None:
            timer.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
