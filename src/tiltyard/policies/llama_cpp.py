"""The ids of a prompt from llama.cpp's server, which gives those of the answer only."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tiltyard.errors import PolicyError


async def prompt_ids(
    ask: Callable[[str, Mapping[str, Any]], Awaitable[Any]], base_url: str, body: Mapping[str, Any], answer: Any
) -> tuple[int, ...] | None:
    """The ids that the server made of a chat request, by asking it to do its first two steps again.

    They are checked against the number that it counted for the answer; None where the two differ.

    Args:
        ask: Posts to an address and gives the JSON that is answered.
        base_url: Where the server's OpenAI paths are; its own are beside them.
        body: The chat request.
        answer: What the server answered to it.

    Raises:
        PolicyError: The server cannot do it.
    """
    root = base_url.removesuffix("/v1")
    template = await ask(f"{root}/apply-template", body)
    text = template.get("prompt") if isinstance(template, Mapping) else None
    if not isinstance(text, str):
        raise PolicyError("the server's /apply-template gave no prompt: token_ids='llama.cpp' needs llama.cpp's server")
    tokens = await ask(f"{root}/tokenize", {"content": text, "add_special": True, "parse_special": True})
    ids = tokens.get("tokens") if isinstance(tokens, Mapping) else None
    if not isinstance(ids, list) or not all(type(one) is int for one in ids):
        raise PolicyError("the server's /tokenize gave no tokens: token_ids='llama.cpp' needs llama.cpp's server")
    return tuple(ids) if len(ids) == answer.get("usage", {}).get("prompt_tokens") else None
