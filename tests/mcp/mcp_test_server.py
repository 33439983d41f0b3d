"""A real MCP server for the tests: `python mcp_test_server.py` speaks stdio, `… http PORT` streamable HTTP."""

import os
import sys
import time
from typing import Any

import anyio
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, EmbeddedResource, ResourceLink, TextContent, TextResourceContents

server = MCPServer("tests")
counts = {"calls": 0}


@server.tool()
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@server.tool()
def count() -> int:
    """Count the calls of this process."""
    counts["calls"] += 1
    return counts["calls"]


@server.tool()
def fail(why: str) -> str:
    """Fail."""
    raise ToolError(why)


@server.tool()
async def sleep(seconds: float) -> str:
    """Sleep without keeping others from working."""
    await anyio.sleep(seconds)
    return "awake"


@server.tool()
def die() -> str:
    """End the server's process."""
    print("goodbye", file=sys.stderr, flush=True)
    time.sleep(0.05)
    os._exit(3)


@server.tool()
def environment(variable: str) -> str:
    """Read an environment variable."""
    return os.environ.get(variable, "not set")


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """Give a text and an image."""
    return ["see:", Image(data=b"12345678", format="png")]


@server.tool()
def record() -> dict[str, Any]:
    """Give an object."""
    return {"stdout": "hi", "exit_code": 1}


@server.tool()
def pieces() -> CallToolResult:
    """Give several kinds of content, and structured content that none of them says."""
    return CallToolResult(
        content=[
            TextContent(text="first"),
            EmbeddedResource(resource=TextResourceContents(uri="file:///a.txt", text="inside")),
            ResourceLink(uri="file:///b.txt", name="b"),
        ],
        structured_content={"found": 3},
    )


@server.tool(name="server.with/odd-name")
def odd() -> str:
    """Have an odd name."""
    return "odd"


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run()
