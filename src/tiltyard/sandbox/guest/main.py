"""The first process of a sandbox: does what the host asks, one call a channel, until the host is gone."""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports] - `signal` costs each sandbox a megabyte
import ctypes
import errno
import fcntl
import json
import os
import resource
import sys

from tiltyard.sandbox.guest import upkeep
from tiltyard.sandbox.guest.children import Child, Children, bound
from tiltyard.sandbox.guest.files import Reading, Work, Writing, entry, make_parents, move, remove, walk
from tiltyard.sandbox.guest.loop import IN, Link, Loop
from tiltyard.sandbox.guest.watches import Watch
from tiltyard.sandbox.guest.wire import CALL, CANCEL, DATA, DONE, END, FAILED, GRANT, HELLO, NUMBER

_HOST = 3
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_SPARE_PROCESSES = 8

_CODES = {
    errno.ENOENT: "missing",
    errno.ESRCH: "missing",
    errno.ENOTDIR: "kind",
    errno.EISDIR: "kind",
    errno.EEXIST: "exists",
    errno.ENOTEMPTY: "exists",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EROFS: "permission",
    errno.EBUSY: "permission",
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EFBIG: "full",
    errno.EAGAIN: "limit",
    errno.ENOMEM: "limit",
    errno.EMFILE: "limit",
    errno.ENFILE: "limit",
    errno.EINVAL: "argument",
    errno.ENAMETOOLONG: "argument",
    errno.ELOOP: "argument",
    errno.ENXIO: "argument",
    errno.EXDEV: "argument",
    errno.E2BIG: "argument",
    errno.ERANGE: "argument",
    errno.ENOEXEC: "argument",
}


class Agent:
    """Answers the host."""

    def __init__(self, settings: dict) -> None:
        self._loop = Loop()
        self._link = Link(self._loop, _HOST, self._receive)
        self._channels: dict = {}
        self._working: list[int] = []
        self._watches: list[Watch] = []
        self._stopped = upkeep.Stopped()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # nobody in the sandbox looks into this process
        self._libc.prctl(
            _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0
        )  # what the kernel gives to the first process of a namespace
        self._children = Children(self._loop, self._link, settings["limits"], self._channels, self._allow_dump)
        if "RLIMIT_NPROC" in settings["limits"]:
            bound(resource.RLIMIT_NPROC, settings["limits"]["RLIMIT_NPROC"] + _SPARE_PROCESSES)
        if settings["watch_memory"]:
            self._loop.every(0.25, lambda: upkeep.kill_largest(settings["watch_memory"]))
        woken, wake = os.pipe()
        for fd in (woken, wake):
            os.set_blocking(fd, False)
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # by default the first process ignores what is sent inside
        _signal.signal(_signal.SIGCHLD, lambda _number, _frame: None)
        _signal.set_wakeup_fd(wake)
        self._woken = woken
        self._loop.wait_for(woken, IN, self._child_ended)

    def run(self) -> None:
        """Serve until the host is gone."""
        self._link.tell(HELLO, 0, {"python": list(sys.version_info[:3])})
        while True:
            self._loop.turn(busy=any(self._channels[channel].ready for channel in self._working))
            for channel in list(self._working):
                work = self._channels[channel]
                if work.ready and not self._attempt(channel, work.step):
                    self._end(channel)
            for child in list(self._children.running.values()):
                if not self._link.full:
                    child.listen()

    def _allow_dump(self) -> None:
        """In a copy of this process that is about to be a command: let it be looked into, without the host."""
        os.close(_HOST)
        self._libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)

    def _child_ended(self, _events: int) -> None:
        os.read(self._woken, 4096)
        self._children.reap()

    def _receive(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == CALL:
            self._call(channel, json.loads(payload))
            return
        target = self._channels.get(channel)
        if target is None:
            return
        if kind == GRANT:
            target.grant(NUMBER.unpack(payload)[0])
        elif kind == DATA:
            if self._attempt(channel, lambda: (target.feed(payload), True)[1]) is False:
                self._end(channel)
        elif kind == END:
            if isinstance(target, Child):
                target.end_input()
            else:
                self._attempt(channel, lambda: self._answer(channel, target.end()))
                self._end(channel)
        elif kind == CANCEL:
            self._end(channel)

    def _call(self, channel: int, call: dict) -> None:
        self._attempt(channel, lambda: getattr(self, "_do_" + call["op"])(channel, call))

    def _attempt(self, channel: int, action) -> object:  # noqa: ANN001 - any call without arguments
        """Run something and tell the host what is wrong with it; returns false then."""
        try:
            return action()
        except OSError as error:
            code, text = _CODES.get(error.errno or 0, "failed"), error.strerror or str(error)
            if error.errno == errno.EAGAIN:
                text = "the sandbox has as many processes as it may have"
            if isinstance(error.filename, (str, bytes)):  # it is a number where a call had an open file
                text = f"{text}: {os.fsdecode(error.filename)}"
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
            code, text = "argument", str(error)  # one call that cannot be is no reason to end
        except MemoryError:
            code, text = "limit", "the sandbox has no memory left"
        self._link.tell(FAILED, channel, {"code": code, "text": text})
        return False

    def _answer(self, channel: int, value: object) -> None:
        for watch in self._watches:
            watch.read()  # what a call did is told before its answer
        self._link.tell(DONE, channel, value)

    def _end(self, channel: int) -> None:
        target = self._channels.get(channel)
        if target is None or isinstance(target, Child):
            return
        del self._channels[channel]
        if channel in self._working:
            self._working.remove(channel)
        if target in self._watches:
            self._watches.remove(target)
        target.close()

    def _work(self, channel: int, work: Reading | Work) -> None:
        self._channels[channel] = work
        self._working.append(channel)

    def _do_spawn(self, channel: int, call: dict) -> None:
        child = self._channels[channel] = self._children.start(channel, call)
        self._answer(channel, {"pid": child.pid})

    def _do_signal(self, channel: int, call: dict) -> None:
        if call["pid"] not in self._children.running:
            raise ProcessLookupError(errno.ESRCH, "no such process", str(call["pid"]))
        os.killpg(call["pid"], call["number"])
        self._answer(channel, None)

    def _do_resize(self, channel: int, call: dict) -> None:
        child = self._children.running.get(call["pid"])
        if child is None:
            raise ProcessLookupError(errno.ESRCH, "no such process", str(call["pid"]))
        child.resize(call["rows"], call["columns"])
        self._answer(channel, None)

    def _do_read(self, channel: int, call: dict) -> None:
        self._work(channel, Reading(self._link, channel, call["path"]))

    def _do_write(self, channel: int, call: dict) -> None:
        self._channels[channel] = Writing(self._link, channel, call["path"], call["metadata"])

    def _do_list(self, channel: int, call: dict) -> None:
        os.listdir(call["path"])
        self._work(channel, Work(self._link, channel, walk(call["path"], call["depth"]), self._answer))

    def _do_stat(self, channel: int, call: dict) -> None:
        self._answer(channel, entry(call["path"]))

    def _do_make_dir(self, channel: int, call: dict) -> None:
        make_parents(call["path"])
        os.mkdir(call["path"])
        self._answer(channel, entry(call["path"]))

    def _do_move(self, channel: int, call: dict) -> None:
        self._answer(channel, move(call["path"], call["to"]))

    def _do_remove(self, channel: int, call: dict) -> None:
        os.lstat(call["path"])
        self._work(channel, Work(self._link, channel, remove(call["path"]), self._answer))

    def _do_watch(self, channel: int, call: dict) -> None:
        watch = self._channels[channel] = Watch(self._loop, self._link, self._libc, channel, call)
        self._watches.append(watch)
        self._answer(channel, None)

    def _do_usage(self, channel: int, _call: dict) -> None:
        self._answer(channel, upkeep.usage())

    def _do_stop(self, channel: int, _call: dict) -> None:
        self._stopped.stop()
        self._answer(channel, None)

    def _do_go_on(self, channel: int, _call: dict) -> None:
        self._stopped.go_on()
        self._answer(channel, None)


def main() -> None:
    """Be the first process; the settings are the last argument."""
    os.closerange(_HOST + 1, 1 << 16)
    fcntl.fcntl(_HOST, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    Agent(json.loads(sys.argv[-1])).run()
