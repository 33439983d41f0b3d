"""Makes sandboxes, keeps some ready, and leaves nothing of any of them."""

import asyncio
import os
import secrets
import socket
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tiltyard.errors import BoxError, BoxGoneError, ConfigurationError
from tiltyard.sandbox.box import Box, BoxParts
from tiltyard.sandbox.box_baking import Baked, bake, keep_files, keep_still, spread
from tiltyard.sandbox.box_command import box_command, lay_out, python_in
from tiltyard.sandbox.box_files import Homes
from tiltyard.sandbox.box_link import BoxLink
from tiltyard.sandbox.box_model import BoxLimits, Template
from tiltyard.sandbox.isolation import Isolation, bwrap_for_all, reachable
from tiltyard.sandbox.keeping import Keeping, Kept, sweep

_START_S = 30
_FIRST_UID, _UIDS = 0x50000000, 0x0FFFFFFF
"""Where the user numbers of sandboxes are: nothing on a machine has such numbers, and two that meet do no harm."""


class BoxMaker:
    """Makes sandboxes of a set of templates.

    Args:
        isolation: What `probe` found.
        folder: Where it may keep its files; made when it is not there. Run as root, each sandbox has a user of its own,
            which has to get there: every folder above must be open to others.
        templates: What there is to be had.
        warm: How many sandboxes of each template are kept ready.

    Raises:
        ConfigurationError: Two templates have one name, or `warm` is negative.
    """

    def __init__(self, isolation: Isolation, folder: Path, templates: Sequence[Template], warm: int = 0) -> None:
        if warm < 0:
            raise ConfigurationError(f"warm must be >= 0, got {warm!r}")
        self.templates: dict[str, Template] = {template.name: template for template in templates}
        if len(self.templates) < len(templates):
            raise ConfigurationError("two templates have the same name")
        self.isolation = isolation
        self._folder = folder
        self._warm = warm
        self._ready: dict[str, deque[Box]] = {name: deque() for name in self.templates}
        self._boxes: dict[str, Box] = {}
        self._taken: set[str] = set()
        self._baking: dict[str, asyncio.Task[Baked | None]] = {}
        self._filling: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._keeping: Keeping | None = None
        self._bwrap = isolation.bwrap or Path("/nonexistent")
        self._starts = asyncio.Semaphore(2 * (os.cpu_count() or 1))

    @property
    def live(self) -> list[Box]:
        """The sandboxes that were taken and are not dead."""
        return [box for box in self._boxes.values() if box.id in self._taken and box.alive]

    async def start(self) -> None:
        """Clear away what a crash left, then get ready; with `warm`, waits until that many are.

        Raises:
            ConfigurationError: The folder cannot be used, or a template cannot be made.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._folder.lstat().st_uid != os.geteuid():
            raise ConfigurationError(f"the folder for sandboxes must be this user's own, {self._folder} is not")
        self._folder.chmod(0o711)
        if self.isolation.as_root and not reachable(self._folder):
            raise ConfigurationError(
                f"the folder for sandboxes must be open to every user, since run as root each sandbox has its own: "
                f"give every folder above {self._folder} the permission o+x, or name another"
            )
        await asyncio.to_thread(sweep, self._folder)
        self._keeping = Keeping(self._folder, self.isolation.python)
        self._keeping.start()
        await asyncio.to_thread(lay_out, self._keeping.folder, self.isolation)
        if self.isolation.as_root and self.isolation.bwrap is not None:
            self._bwrap = bwrap_for_all(self._bwrap, self._keeping.folder)
        if self._warm:
            try:
                await asyncio.gather(*(self._fill(name) for name in self.templates))
            except BaseException:
                await self.close()
                raise

    async def take(
        self,
        template: str,
        envs: Mapping[str, str] | None = None,
        limits: BoxLimits | None = None,
        files: Baked | None = None,
    ) -> Box:
        """A sandbox, from those that are ready where there is one.

        Args:
            template: The name of what it is made of.
            envs: Variables of every command in it.
            limits: Instead of the template's; such a sandbox is always made anew.
            files: What `keep_files` kept of another, instead of what the template's set-up left.

        Raises:
            ConfigurationError: There is no such template, or its set-up fails.
            BoxGoneError: It did not start.
        """
        if template not in self.templates:
            known = ", ".join(repr(name) for name in self.templates)
            raise ConfigurationError(f"no template {template!r}; there are: {known}")
        made_of, box = self.templates[template], None
        if (limits is None or limits == made_of.limits) and not (files and made_of.setup):
            box = self._from_ready(template)
        if box is None:
            box = await self._make(made_of, limits, bare=files is not None)
        if files is not None:
            await self._filled(box, files)
        self._taken.add(box.id)
        self._refill(template)
        box.envs.update(envs or {})
        return box

    async def keep_files(self, box: Box, *, still: bool = False) -> Baked:
        """The files of a sandbox as they are now, to `take` others with; the archive is the caller's to remove.

        Args:
            box: The sandbox.
            still: Stop what runs in it first, for a sandbox that is then killed.

        Raises:
            ConfigurationError: They cannot be kept.
            BoxError: The sandbox is dead, or cannot do it.
        """
        if self._keeping is None:
            raise BoxGoneError("the server for sandboxes is closed")
        keep = keep_still if still else keep_files
        return await keep(box, self._keeping.folder / f"kept-{secrets.token_hex(8)}.tar")

    async def close(self) -> None:
        """Kill every sandbox and leave nothing."""
        keeping, self._keeping = self._keeping, None
        tasks = [*self._filling.values(), *self._baking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        boxes = list(self._boxes.values())
        await asyncio.gather(*(box.kill("the server was closed") for box in boxes))
        if keeping is not None:
            await keeping.close()
        await asyncio.gather(*self._ending)

    def _from_ready(self, template: str) -> Box | None:
        ready = self._ready[template]
        while ready:
            box = ready.popleft()
            if box.alive:
                return box
        return None

    def _refill(self, template: str) -> None:
        """Make sandboxes ready beside what goes on; a failure shows when one is taken that is not ready."""
        task = self._filling.get(template)
        if self._keeping is None or not self._warm or (task is not None and not task.done()):
            return
        task = self._filling[template] = asyncio.create_task(self._fill(template))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _fill(self, template: str) -> None:
        while (missing := self._warm - len(self._ready[template])) > 0:
            making = (self._make(self.templates[template]) for _ in range(missing))
            made = await asyncio.gather(*making, return_exceptions=True)
            self._ready[template].extend(box for box in made if isinstance(box, Box) and box.alive)
            for failure in made:
                if isinstance(failure, BaseException):
                    raise failure

    async def _make(self, template: Template, limits: BoxLimits | None = None, *, bare: bool = False) -> Box:
        baked = await self._baked(template) if template.setup and not bare else None
        async with self._starts:
            box = await self._start_box(template, limits or template.limits)
        if baked is not None:
            await self._filled(box, baked)
        return box

    async def _filled(self, box: Box, files: Baked) -> None:
        try:
            await spread(box, files)
        except BaseException:
            await box.kill()
            raise

    async def _baked(self, template: Template) -> Baked | None:
        task = self._baking.get(template.name)
        if task is None or (task.done() and (task.cancelled() or task.exception())):  # what failed may do now
            task = self._baking[template.name] = asyncio.create_task(self._bake(template))
        return await asyncio.shield(task)

    async def _bake(self, template: Template) -> Baked:
        assert self._keeping is not None
        box = await self._start_box(template, template.limits)
        try:
            return await bake(box, self._keeping.folder / f"baked-{secrets.token_hex(4)}.tar")
        finally:
            await box.kill()

    async def _start_box(self, template: Template, limits: BoxLimits) -> Box:
        keeping = self._keeping
        if keeping is None:
            raise BoxGoneError("the server for sandboxes is closed")
        box_id = secrets.token_hex(10)
        groups = self.isolation.cgroups.order(f"tiltyard-{keeping.token}-{box_id}", limits)
        outside = str(keeping.folder / "homes" / box_id) if self.isolation.kind == "none" else None
        boot_id = keeping.folder / f"boot-{box_id}"
        order = {
            "direct": outside,
            "id": box_id,
            "uid": _FIRST_UID + secrets.randbelow(_UIDS) if self.isolation.as_root else None,
            "seccomp": str(keeping.folder / "filter"),
            **{key: value for key, value in asdict(groups).items() if key in ("groups", "thaw", "asked")},
        }
        try:
            if outside is not None:
                Path(outside).mkdir(parents=True)
            boot_id.write_text(f"{uuid.uuid4()}\n")
            boot_id.chmod(0o644)
            order["argv"] = box_command(self.isolation, self._bwrap, keeping.folder, template, limits, boot_id)
            ours, kept = await _ordered(keeping, order)
            broken = asyncio.Event()
            link = await BoxLink.over(ours, lambda _why: broken.set())
            kept.ended.add_done_callback(lambda _: link.close("the sandbox ended"))
            pid = await _begun(keeping, box_id, kept, link)
        except OSError as error:  # no room on its disk, no descriptor left, the template's root is gone
            raise BoxGoneError(f"this machine cannot start a sandbox: {error}") from error
        finally:
            boot_id.unlink(missing_ok=True)  # it is mounted by now, and stays to be read there
        box = self._boxes[box_id] = Box(
            box_id,
            template,
            limits,
            BoxParts(link, keeping, kept, pid, groups, tuple(python_in(self.isolation, template)), Homes(outside)),
        )
        ending = asyncio.create_task(self._see_off(box, broken))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return box

    async def _see_off(self, box: Box, broken: asyncio.Event) -> None:
        """Forget a sandbox when it is dead; one that broke off the connection is made dead."""
        await broken.wait()
        await box.clear_away()
        self._boxes.pop(box.id, None)
        self._taken.discard(box.id)


async def _ordered(keeping: Keeping, order: dict[str, Any]) -> tuple[socket.socket, Kept]:
    """Have a sandbox started; returns the host's end of its connection, and what the keeper will tell of it."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    try:
        with theirs:
            return ours, await keeping.box(order, theirs)
    except BaseException:
        ours.close()
        raise


async def _begun(keeping: Keeping, box_id: str, kept: Kept, link: BoxLink) -> int:
    """Wait for a sandbox's first process; returns its number. One that does not start, or is not wanted, is killed.

    Raises:
        BoxGoneError: It did not start.
    """
    try:
        async with asyncio.timeout(_START_S):
            await link.hello
            return await asyncio.shield(kept.started)
    except (BoxError, TimeoutError) as error:
        link.close("the sandbox did not start")
        await keeping.kill(box_id)
        told = await asyncio.shield(kept.ended)
        raise BoxGoneError(
            f"the sandbox did not start: {told['stderr'].strip() or error} (code {told['code']})"
        ) from error
    except asyncio.CancelledError:
        link.close("the sandbox is not wanted any more")
        await keeping.kill(box_id)
        raise
