"""The policy behind any OpenAI-compatible server."""

import copy
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Literal, Self

from tiltyard.errors import ConfigurationError
from tiltyard.policies.answer import read_reply
from tiltyard.policies.attempts import Attempts, Posts
from tiltyard.policies.base import Sampling
from tiltyard.policies.connections import Connections, HttpLimits
from tiltyard.policies.llama_cpp import prompt_ids
from tiltyard.policies.openai_client import ClientPosts
from tiltyard.policies.retries import Retries
from tiltyard.policies.wire import checked_fields, request_body, token_bound
from tiltyard.types import Prompt, Reply

DEFAULT_BASE_URL = "https://api.openai.com/v1"

TokenIds = Literal["vllm", "llama.cpp"]
LLAMA_CPP: TokenIds = "llama.cpp"

_ASKS_FOR_TOKENS: dict[TokenIds | None, dict[str, Any]] = {
    None: {},
    "vllm": {"logprobs": True, "return_token_ids": True},
    "llama.cpp": {"logprobs": True},
}


class OpenAI:
    """A chat model behind an OpenAI-compatible server, as an `AsyncPolicy`.

    `async with` keeps the connections of the running event loop; a reply outside of it opens one of its own. One
    object serves any number of episodes, event loops and threads.

    Attempts that met a lost connection, 408, 409, 429 or a status from 500 on are made again, after the pause that
    the server asked for or after an exponential back-off with jitter, until `max_retries` or `timeout_s` is used up.

    Attributes:
        model: The model's name, as the server knows it.
        base_url: Where the server is.
    """

    def __init__(  # noqa: PLR0913  # the three of the contract, and the bounds of the traffic, each by its name
        self,
        model: str,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        sampling: Sampling | Mapping[str, Any] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        token_ids: TokenIds | None = None,
        timeout_s: float = 600.0,
        max_retries: int = 8,
        retry_delay_s: float = 0.5,
        max_connections: int = 1024,
        max_response_bytes: int = 64 * 2**20,
        client: Any = None,
    ) -> None:
        """Set the policy up; nothing is sent yet.

        Args:
            model: The model's name, as the server knows it.
            base_url: As far as `/chat/completions`, e.g. `http://localhost:8000/v1`. None takes `OPENAI_BASE_URL`,
                then OpenAI's own.
            api_key: None takes `OPENAI_API_KEY`; without either no key is sent.
            sampling: Fields of every request, such as `temperature`; None leaves them to the server.
            extra_body: Further fields of every request, which replace those of `sampling`.
            token_ids: How to ask this server for the ids and log-probabilities that training needs: "vllm" (0.10.2
                or newer; start it with `--logprobs-mode processed_logprobs`, or sample at temperature 1 with nothing
                cut off), or "llama.cpp" (two short requests more a turn; its log-probabilities are those before
                sampling: use temperature 1, top_k 0, top_p 1, min_p 0). None asks for nothing and keeps what comes.
            timeout_s: For one reply, all its attempts and pauses included.
            max_retries: Attempts after the first one.
            retry_delay_s: The most that is waited before the first of them; it doubles from there, up to 60 times.
            max_connections: Requests on their way at one time, for each event loop; more wait for their turn.
            max_response_bytes: A longer answer fails its episode.
            client: An `openai.OpenAI` or `openai.AsyncOpenAI` that makes the requests, with its own address, key,
                retries and limits in place of these; a sync one is called on threads, `max_connections` at a time.

        Raises:
            ConfigurationError: An argument cannot work.
            MissingExtraError: aiohttp or orjson is not installed.
        """
        if not isinstance(model, str) or not model:
            raise ConfigurationError(f"model must be the model's name as the server knows it, got {model!r}")
        if not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise ConfigurationError(f"timeout_s must be > 0 seconds, got {timeout_s!r}")
        if token_ids not in _ASKS_FOR_TOKENS:
            raise ConfigurationError(f"token_ids must be 'vllm', 'llama.cpp' or None, got {token_ids!r}")
        self.model = model
        self.token_ids: TokenIds | None = token_ids
        self.timeout_s = timeout_s
        self._fields = {**_ASKS_FOR_TOKENS[token_ids], **_checked(sampling, extra_body)}
        key = _checked_key(api_key or os.environ.get("OPENAI_API_KEY") or "")
        retries = Retries(max_retries, retry_delay_s, 60 * retry_delay_s)
        self._posts: Posts
        if client is None:
            url = base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            limits = HttpLimits(max_connections, max_response_bytes=max_response_bytes)
            self._posts = Connections(url, headers, limits)
        else:
            if base_url is not None or api_key is not None or token_ids == LLAMA_CPP:
                raise ConfigurationError("a client has its own base_url and api_key, and no token_ids='llama.cpp'")
            self._posts = ClientPosts(client, max_connections)
            retries = Retries(0)
        self.base_url = self._posts.base_url
        self._url = f"{self.base_url}/chat/completions"
        self._attempts = Attempts(self._posts, retries, timeout_s, key)

    @property
    def requests(self) -> int:
        """How many attempts were made, over all replies."""
        return self._attempts.requests

    @property
    def retried(self) -> int:
        """How many attempts were made again."""
        return self._attempts.retried

    def __repr__(self) -> str:
        return f"OpenAI(model={self.model!r}, base_url={self.base_url!r})"

    def with_fields(
        self, sampling: Sampling | Mapping[str, Any] | None = None, extra_body: Mapping[str, Any] | None = None
    ) -> "OpenAI":
        """The same server over the same connections, with these fields beside, or in place of, those there are.

        Raises:
            ConfigurationError: A field is not for the caller to set.
        """
        other = copy.copy(self)
        other._fields = {**self._fields, **_checked(sampling, extra_body)}
        return other

    async def reply(self, prompt: Prompt, *, max_tokens: int | None = None) -> Reply:
        """Answer one prompt.

        Raises:
            PromptTooLongError: The server says that the prompt does not fit.
            PolicyError: There was no answer in time, or none that can be used; the message has the server's words.
        """
        deadline = time.monotonic() + self.timeout_s
        body = request_body(self.model, self._fields, prompt, max_tokens)
        data = await self._attempts.ask(self._url, body, deadline)
        reply = read_reply(data, max_tokens=token_bound(body))
        if self.token_ids == LLAMA_CPP:
            ids = await prompt_ids(
                lambda url, fields: self._attempts.ask(url, fields, deadline), self.base_url, body, data
            )
            reply = replace(reply, prompt_ids=ids)
        return reply

    async def __aenter__(self) -> Self:
        await self._posts.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._posts.leave()


def _checked(sampling: Sampling | Mapping[str, Any] | None, extra_body: Mapping[str, Any] | None) -> dict[str, Any]:
    fields = asdict(sampling) if isinstance(sampling, Sampling) else sampling or {}
    for name, given in (("sampling", fields), ("extra_body", extra_body or {})):
        if not isinstance(given, Mapping):
            raise ConfigurationError(f"{name} must be a dict of request fields, got {given!r}")
    return checked_fields({**fields, **(extra_body or {})})


def _checked_key(key: object) -> str:
    """The key without the line break of the file that it was read from; no message ever shows it."""
    if not isinstance(key, str) or not key.strip().isprintable():
        raise ConfigurationError("api_key must be one line of text; what was given is not, and is not shown here")
    return key.strip()
