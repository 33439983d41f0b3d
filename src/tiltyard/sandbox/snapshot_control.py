"""The control plane of snapshots: they are taken, listed and deleted."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tiltyard.sandbox.fields import optional_text, parsed_object
from tiltyard.sandbox.framing import whole_body
from tiltyard.sandbox.live import Sandboxes
from tiltyard.sandbox.refusal import RefusedError
from tiltyard.sandbox.snapshots import Snapshot


class SnapshotControl:
    """Answers the requests on snapshots; what is made from one is asked for as from a template of its id or name."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    def routes(self) -> list[Route]:
        """Where each request is answered."""
        return [
            *(Route(f"{v}/sandboxes/{{id}}/snapshots", self.take, methods=["POST"]) for v in ("", "/v2")),
            Route("/snapshots", self.list, methods=["GET"]),
            Route("/templates/{id:path}", self.delete, methods=["DELETE"]),
        ]

    async def take(self, request: Request) -> Response:
        """Keep the files of a sandbox."""
        body = parsed_object(await whole_body(request))
        if body.get("memory") is True:
            raise RefusedError(
                "unimplemented",
                "a snapshot has the files of a sandbox and not its memory: leave out 'memory' (mode='full')",
            )
        sandbox = self._sandboxes.get(request.path_params["id"])
        return JSONResponse(_told(await self._sandboxes.take_snapshot(sandbox, optional_text(body, "name"))), 201)

    async def list(self, request: Request) -> Response:
        """All of them, or those of a sandbox or a name, on one page: there are not many."""
        query = request.query_params
        found = self._sandboxes.snapshots.wanted(query.get("sandboxID"), query.get("name"))
        return JSONResponse([_told(snapshot) for snapshot in found])

    async def delete(self, request: Request) -> Response:
        """Delete one; templates themselves belong to whoever started the server."""
        if not self._sandboxes.snapshots.delete(request.path_params["id"]):
            raise RefusedError("not_found", f"there is no snapshot {request.path_params['id']!r}")
        return Response(status_code=204)


def _told(snapshot: Snapshot) -> dict[str, Any]:
    return {"snapshotID": snapshot.id, "names": snapshot.names}
