"""The application: which request is answered where, who may ask, and how errors are told."""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tiltyard._boundary import reason
from tiltyard.errors import (
    BoxArgumentError,
    BoxError,
    BoxFullError,
    BoxGoneError,
    BoxLimitError,
    BoxPathExistsError,
    BoxPathKindError,
    BoxPathMissingError,
    BoxPermissionError,
)
from tiltyard.sandbox.access import check_key, sandbox_of
from tiltyard.sandbox.commands import Commands
from tiltyard.sandbox.control import Control
from tiltyard.sandbox.folders import Folders
from tiltyard.sandbox.live import Sandboxes
from tiltyard.sandbox.refusal import Code, RefusedError
from tiltyard.sandbox.snapshot_control import SnapshotControl
from tiltyard.sandbox.transfer import Transfer

Answer = Callable[[Request], Awaitable[Response]]

INTERNAL: Code = "internal"

RPC_PATHS = ("/process.", "/filesystem.")

CODES: dict[type, Code] = {
    BoxPathMissingError: "not_found",
    BoxPathExistsError: "already_exists",
    BoxPathKindError: "invalid_argument",
    BoxPermissionError: "permission_denied",
    BoxFullError: "no_space",
    BoxLimitError: "resource_exhausted",
    BoxArgumentError: "invalid_argument",
    BoxGoneError: "unavailable",
}
"""What a box's errors are called on the wire."""


def sandbox_app(sandboxes: Sandboxes, key: str) -> Starlette:
    """The application that serves these sandboxes to whoever has the key."""
    control, transfer = Control(sandboxes), Transfer(sandboxes)

    async def health(request: Request) -> Response:
        await sandbox_of(request, sandboxes, wakes=False)
        return Response(status_code=204)

    return Starlette(
        routes=[
            *(Route(path, call, methods=["POST"]) for path, call in _calls(sandboxes).items()),
            Route("/files", transfer.read, methods=["GET"]),
            Route("/files", transfer.write, methods=["POST"]),
            Route("/health", health, methods=["GET"]),
            *(
                Route(route.path, _with_key(route.endpoint, key), methods=list(route.methods or ()))
                for route in (*control.routes(), *SnapshotControl(sandboxes).routes())
            ),
            Route("/{path:path}", _with_key(_unknown, key), methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
        ],
        exception_handlers={
            RefusedError: _refused,
            BoxError: _box_failed,
            ClientDisconnect: _left,
            Exception: _unforeseen,
        },
    )


def _calls(sandboxes: Sandboxes) -> dict[str, Answer]:
    """The remote calls on one sandbox, by their paths."""
    commands, folders = Commands(sandboxes), Folders(sandboxes)
    return {
        "/process.Process/Start": commands.start,
        "/process.Process/Connect": commands.connect,
        "/process.Process/List": commands.list,
        "/process.Process/SendInput": commands.send_input,
        "/process.Process/StreamInput": commands.stream_input,
        "/process.Process/CloseStdin": commands.close_input,
        "/process.Process/SendSignal": commands.send_signal,
        "/process.Process/Update": commands.update,
        "/filesystem.Filesystem/Stat": folders.stat,
        "/filesystem.Filesystem/ListDir": folders.list_dir,
        "/filesystem.Filesystem/MakeDir": folders.make_dir,
        "/filesystem.Filesystem/Move": folders.move,
        "/filesystem.Filesystem/Remove": folders.remove,
        "/filesystem.Filesystem/WatchDir": folders.watch_dir,
        "/filesystem.Filesystem/CreateWatcher": folders.create_watcher,
        "/filesystem.Filesystem/GetWatcherEvents": folders.watcher_events,
        "/filesystem.Filesystem/RemoveWatcher": folders.remove_watcher,
    }


def _with_key(answer: Answer, key: str) -> Answer:
    async def guarded_answer(request: Request) -> Response:
        check_key(request, key)
        return await answer(request)

    return guarded_answer


async def _unknown(request: Request) -> Response:
    raise RefusedError(
        "unimplemented",
        f"the local sandbox server does not answer {request.method} {request.url.path}: it has sandboxes, their "
        "commands and files, snapshots of their files, and no forks, template builds, volumes or network rules",
    )


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    body = error.as_connect() if request.url.path.startswith(RPC_PATHS) else error.as_plain()
    return JSONResponse(body, error.status)


async def _box_failed(request: Request, error: Exception) -> Response:
    found: list[Code] = [CODES[kind] for kind in type(error).__mro__ if kind in CODES]
    code: Code = found[0] if found else INTERNAL
    message = f"the sandbox was not found: {error}" if code == "unavailable" else str(error)
    return await _refused(request, RefusedError(code, message))


async def _unforeseen(request: Request, error: Exception) -> Response:
    """A fault of the server: it is logged with its trace, and clients read a body that they can take apart."""
    return await _refused(request, RefusedError(INTERNAL, f"the sandbox server failed: {reason(error)}"))


async def _left(request: Request, error: Exception) -> Response:
    del request, error
    return Response(status_code=499)  # nobody is there to read it
