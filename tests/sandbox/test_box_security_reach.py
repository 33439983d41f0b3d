"""What a sandbox cannot reach: the host's files, network and kernel, other sandboxes, its own first process."""

import socket
from pathlib import Path

import pytest
from box_worlds import WORLDS, content, play, python, sh

from tiltyard.errors import BoxError, BoxPermissionError

pytestmark = pytest.mark.parametrize("who", WORLDS)


def test_the_hosts_secrets_and_folders_are_not_there(who):
    """A sandbox has the host's programs and named files of `/etc`: no shadow, no homes, no code of ours."""

    async def scenario(maker):
        box = await maker.take("base")
        ran = await sh(box, "cat /etc/shadow /etc/gshadow /proc/1/root/etc/shadow; ls -A / /home /root /sys")
        assert "shadow: No such file" in ran.err
        assert ran.err.count("No such file") + ran.err.count("Permission denied") == 4
        assert "user\n" in ran.out
        assert set(ran.out.split("/:\n")[1].split("\n\n")[0].split()) <= {
            ".tiltyard", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "dev", "proc", "home", "root",
            "tmp", "var", "run", "opt", "srv", "mnt",
        }  # fmt: skip
        written = await sh(box, "touch /usr/x; echo x > /etc/passwd; echo x > /usr/bin/env; echo x > /.tiltyard/x")
        assert written.err.count("Read-only file system") == 4

    play(who, scenario)


def test_one_sandbox_sees_nothing_of_another(who):
    """Files, processes and the kernel's message queues of one sandbox are not those of another."""

    async def scenario(maker):
        one, other = await maker.take("base"), await maker.take("base")
        await one.write_file("secret", b"mine")
        await one.write_file("/tmp/secret", b"mine")
        await one.write_file("/dev/shm/secret", b"mine")
        await one.spawn("sleep", ["1000"])
        ran = await sh(other, "cat ~/secret /tmp/secret /dev/shm/secret; ps -eo comm; kill -9 $(pgrep sleep); ls /proc")
        assert ran.err.count("No such file") == 3
        assert "sleep" not in ran.out
        assert [info.cmd for info in one.processes()] == ["sleep"]
        assert await content(one, "secret") == b"mine"

    play(who, scenario)


def test_neither_the_hosts_loopback_nor_the_outside_is_reached(who):
    """There is a network of one's own with nothing on it; not even a hypervisor's socket leads out."""

    async def scenario(maker):
        box = await maker.take("base")
        abstract = f"\0tiltyard-test-{port}"
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind(abstract)
            unix.listen()
            ran = await python(
                box,
                f"""
import socket
def attempt(family, address):
    try:
        with socket.socket(family, socket.SOCK_STREAM) as s:
            s.settimeout(2)
            s.connect(address)
            print("connected", address)
    except OSError as error:
        print(type(error).__name__, error.errno)
attempt(socket.AF_INET, ("127.0.0.1", {port}))
attempt(socket.AF_INET, ("1.1.1.1", 80))
attempt(socket.AF_INET, ("169.254.169.254", 80))
attempt(socket.AF_INET6, ("2606:4700:4700::1111", 80))
attempt(socket.AF_UNIX, {abstract!r})
attempt(40, (2, 1))
print(sorted(name for _, name in socket.if_nameindex()))
""",
            )
        assert "connected" not in ran.out, ran.out
        assert ran.out.splitlines()[5] == "OSError 97"
        assert ran.out.splitlines()[6] == "['lo']", ran

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        play(who, scenario)


def test_its_own_loopback_works(who):
    """Tests that start a server and talk to it run."""

    async def scenario(maker):
        box = await maker.take("base")
        ran = await python(
            box,
            """
import socket
server = socket.create_server(("127.0.0.1", 8000))
with socket.create_connection(("localhost", 8000)) as client:
    accepted, _ = server.accept()
    accepted.sendall(b"hello")
    print(client.recv(5))
""",
        )
        assert ran.out == "b'hello'\n", ran

    play(who, scenario)


def test_no_namespace_mount_or_device_can_be_made(who):
    """What would give rights inside a namespace of one's own is refused, whichever call asks for it."""

    async def scenario(maker):
        box = await maker.take("base")
        ran = await python(
            box,
            """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
def call(name, result):
    print(name, "ok" if result >= 0 else os.strerror(ctypes.get_errno()))
call("unshare", libc.unshare(0x10000000))
call("unshare-all", libc.unshare(0x10000000 | 0x00020000 | 0x40000000))
call("unshare-mounts", libc.unshare(0x00020000))
clone = 56 if platform.machine() == "x86_64" else 220
pid = libc.syscall(clone, 0x10000000 | 17, 0, 0, 0, 0)
call("clone", pid) if pid else os._exit(0)
call("clone3", libc.syscall(435, ctypes.create_string_buffer(88), 88))
call("setns", libc.setns(os.open("/proc/self/ns/user", 0), 0))
call("mount", libc.mount(b"none", b"/mnt", b"tmpfs", 0, None))
call("umount", libc.umount2(b"/proc", 2))
call("mknod", libc.mknod(b"/tmp/sda", 0o60666, 0x800))
call("mknod-mem", libc.mknod(b"/tmp/mem", 0o20666, 0x101))
call("keyctl", libc.syscall(250 if platform.machine() == "x86_64" else 219, 0, -3, 0))
call("bpf", libc.syscall(321 if platform.machine() == "x86_64" else 280, 0, 0, 0))
call("io_uring", libc.syscall(425, 4, ctypes.create_string_buffer(256)))
call("userfaultfd", libc.syscall(323 if platform.machine() == "x86_64" else 282, 0))
call("setuid", libc.setuid(0))
call("chroot", libc.chroot(b"/tmp"))
""",
        )
        assert ran.code == 0, ran
        answers = dict(line.split(" ", 1) for line in ran.out.splitlines())
        assert answers.pop("clone3") == "Function not implemented"
        assert answers.pop("setuid") == "Invalid argument"
        assert set(answers.values()) == {"Operation not permitted"}, answers
        devices = await sh(
            box,
            "for f in /dev/*; do test -L $f || test ! -b $f -a ! -c $f || echo $f; done; "
            "touch /dev/x; ln -s zero /dev/y",
        )
        assert devices.out.split() == [
            "/dev/full", "/dev/null", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero"
        ]  # fmt: skip
        assert devices.err.count("Read-only file system") == 2

    play(who, scenario)


def test_the_kernels_settings_cannot_be_written(who):
    """`/proc/sys` and the like are the host's."""

    async def scenario(maker):
        box = await maker.take("base")
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/overcommit_memory"):
            with pytest.raises(BoxError):
                await box.write_file(path, b"1")
            assert (await sh(box, f"echo 1 > {path}")).code != 0
        limits = (await sh(box, "cat /proc/self/status; cat /proc/self/limits")).out
        assert "NoNewPrivs:\t1" in limits
        assert "Seccomp:\t2" in limits
        assert "CapBnd:\t0000000000000000" in limits
        assert limits.split("Max core file size")[1].split()[0] == "1"

    play(who, scenario)


def test_the_first_process_cannot_be_looked_into_or_killed(who):
    """It answers to the host: what runs beside it can neither trace it, read its memory, nor take its socket."""

    async def scenario(maker):
        box = await maker.take("base")
        ran = await python(
            box,
            """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
print("attach", libc.ptrace(16, 1, 0, 0), os.strerror(ctypes.get_errno()))
print("seize", libc.ptrace(0x4206, 1, 0, 0), os.strerror(ctypes.get_errno()))
pidfd = os.pidfd_open(1)
print("getfd", libc.syscall(438, pidfd, 3, 0), os.strerror(ctypes.get_errno()))
for name in ("mem", "environ", "maps", "fd/3"):
    try:
        os.open(f"/proc/1/{name}", os.O_RDONLY)
        print(name, "opened")
    except OSError as error:
        print(name, -1, error.strerror)
for number in range(1, 65):
    if number not in (32, 33):
        os.kill(1, number)
""",
        )
        assert ran.code == 0, ran
        assert all(" -1 " in line for line in ran.out.splitlines()), ran.out
        assert len(ran.out.splitlines()) == 7
        assert (await sh(box, "echo $PPID")).out == "1\n"

    play(who, scenario)


def test_nothing_types_into_the_hosts_terminal(who):
    """Input cannot be pushed into a terminal, not even one's own."""

    async def scenario(maker):
        box = await maker.take("base")
        ran = await sh(
            box,
            "python3 -I -c 'import fcntl; fcntl.ioctl(0, 0x5412, b\"x\")' 2>&1 | tail -1; tty",
            pty=(24, 80),
        )
        assert "PermissionError" in ran.out
        assert "/dev/pts/" in ran.out

    play(who, scenario)


def test_a_command_has_no_descriptor_but_its_three(who):
    """Nothing of the first process or of the host is open in what it starts."""

    async def scenario(maker):
        box = await maker.take("base")
        ran = await python(box, "import os; print(sorted(os.listdir('/proc/self/fd'))[:-1])")
        assert ran.out == "['0', '1', '2']\n"

    play(who, scenario)


def test_a_planted_link_leads_nowhere_but_inside(who):
    """File calls are made in the sandbox: a link to the host's path is a link to the sandbox's own."""

    async def scenario(maker):
        box = await maker.take("base")
        await sh(box, "ln -s /etc/shadow out; ln -s /etc up; ln -s ../../../../../etc/passwd rel; ln -s /proc/1/root r")
        with pytest.raises(BoxError):
            await content(box, "out")
        assert await content(box, "r/etc/passwd") == await content(box, "rel")
        assert b"user:x:1000" in await content(box, "rel")
        with pytest.raises(BoxPermissionError):
            await box.write_file("rel", b"root::0:0::/:/bin/sh")
        await box.write_file("up/planted", b"x")
        assert (await box.stat("/etc/planted")).owner == "user"
        await box.remove("up")
        assert (await box.stat("/etc/passwd")).kind == "file"
        assert not Path("/etc/planted").exists()

    play(who, scenario)
