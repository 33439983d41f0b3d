"""A worker process of the server: `python -m tiltyard.serving.worker FD` is given connections on a socket."""

import json
import os
import signal
import socket
import sys
import threading

from tiltyard.serving.desk import MAX_MESSAGE_BYTES
from tiltyard.serving.making import EnvMaker, EnvSpec
from tiltyard.serving.place import LocalPlace
from tiltyard.serving.socket import ServedSocket
from tiltyard.serving.workers import HEADER, RELEASED, STOPPED

STOP_TIMEOUT_S = 10.0


def main(descriptor: int) -> None:
    """Serve until the other end of the channel closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the first process decides
    channel = socket.socket(fileno=descriptor)
    setup = json.loads(_line(channel))
    sys.path[:] = setup["path"]
    env = EnvSpec(setup["spec"], setup["env_config"], setup["action_cls"])
    place = LocalPlace(
        EnvMaker(env), setup["capacity"], setup["call_timeout_s"], released=lambda: channel.sendall(RELEASED)
    )
    channel.sendall(RELEASED)
    while (connection := _received(channel)) is not None:
        threading.Thread(target=_play, args=(connection, place), daemon=True).start()
    place.stop(STOP_TIMEOUT_S)
    leaked = place.report().leaked
    if leaked:
        channel.sendall(STOPPED * leaked)
    os._exit(0)  # threads whose environment hangs would be waited for


def _play(connection: ServedSocket, place: LocalPlace) -> None:
    connection.handshake()
    if not place.admit(connection):  # it stops
        connection.socket.close()


def _received(channel: socket.socket) -> ServedSocket | None:
    """The next connection, with its request; None when there will be none."""
    header, descriptors, _, _ = socket.recv_fds(channel, HEADER, 1)
    if not header:
        return None
    length = int.from_bytes(header, "big")
    head = b""
    while len(head) < length:
        head += channel.recv(length - len(head))
    return ServedSocket(socket.socket(fileno=descriptors[0]), MAX_MESSAGE_BYTES, head)


def _line(channel: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        part = channel.recv(1)
        if not part:
            raise SystemExit("the process that started this worker is gone")
        line += part
    return line


if __name__ == "__main__":
    main(int(sys.argv[1]))
