"""Requests made by the user's own `openai` client."""

import asyncio
import json
import threading
from typing import Any

from tiltyard._optional import require
from tiltyard.errors import ConfigurationError
from tiltyard.policies.connections import ConnectionFailedError, DeadlineError, Response


class ClientPosts:
    """Posts through an `openai` client, sync or async, and past its pydantic models: what came is taken as it came.

    The client stays its owner's: it is not closed here.
    """

    def __init__(self, client: Any, max_connections: int) -> None:
        """Take the client.

        Raises:
            ConfigurationError: It is not an `openai` client.
        """
        self._openai = require("openai", "api")
        self._awaited = isinstance(client, self._openai.AsyncOpenAI)
        if not self._awaited and not isinstance(client, self._openai.OpenAI):
            raise ConfigurationError(f"client must be an openai.OpenAI or openai.AsyncOpenAI, got {client!r}")
        self._client = client
        self._max_connections = max_connections
        self._turns: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}
        self.base_url = str(client.base_url).rstrip("/")

    async def enter(self) -> None:
        """Nothing is kept here: the connections are the client's."""

    async def leave(self) -> None:
        """Nothing is kept here."""

    async def post(self, url: str, body: bytes, timeout_s: float) -> Response:
        """Send one request; the client may send it several times.

        Raises:
            ConnectionFailedError: Without an answer.
            DeadlineError: In time.
        """
        openai = self._openai
        path = url.removeprefix(self.base_url)
        options = {"body": json.loads(body), "cast_to": str}
        try:
            async with asyncio.timeout(timeout_s):
                if self._awaited:
                    text = await self._client.post(path, **options)
                else:
                    text = await self._on_a_thread(path, options)
        except openai.APIStatusError as error:
            return Response(error.status_code, error.response.content)
        except openai.APIConnectionError as error:
            raise ConnectionFailedError(f"{type(error).__name__}: {error}") from error
        except TimeoutError as error:
            raise DeadlineError from error
        return Response(200, text.encode("utf-8", "surrogatepass"))

    async def _on_a_thread(self, path: str, options: dict[str, Any]) -> str:
        """A thread for one call: what it costs is little beside the call, and none outlives the process."""
        loop = asyncio.get_running_loop()
        async with self._turns.setdefault(loop, asyncio.Semaphore(self._max_connections)):
            future: asyncio.Future[str] = loop.create_future()
            threading.Thread(
                target=_call, args=(self._client.post, path, options, loop, future), name="tiltyard-api", daemon=True
            ).start()
            return await future


def _call(post: Any, path: str, options: dict[str, Any], loop: asyncio.AbstractEventLoop, future: Any) -> None:
    try:
        result, error = post(path, **options), None
    except Exception as caught:  # noqa: BLE001  # carried to the loop that waits
        result, error = None, caught

    def deliver() -> None:
        if not future.done():
            future.set_result(result) if error is None else future.set_exception(error)

    try:
        loop.call_soon_threadsafe(deliver)
    except RuntimeError:
        # The loop was closed since: nobody waits any more.
        return
