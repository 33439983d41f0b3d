"""For tests of sandboxes: one real server for all of them, and what its clients need."""

from dataclasses import dataclass
from typing import Any

import pytest

from tiltyard.errors import ConfigurationError
from tiltyard.sandbox.isolation import probe


@dataclass
class Wire:
    """Plain HTTP to a server, as a client writes it."""

    http: Any
    url: str
    key: str

    def api(self, method, path, json=None, key=None, **options):
        headers = {"X-API-KEY": self.key if key is None else key, **options.pop("headers", {})}
        return self.http.request(method, path, json=json, headers=headers, **options)

    def create(self, **body):
        answer = self.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 60, **body})
        assert answer.status_code == 201, answer.text
        return answer.json()

    def call(self, made, name, body, **headers):
        """A remote call on a sandbox that was made."""
        return self.http.post(f"/{name}", json=body, headers={**self.access(made), **headers})

    def access(self, made):
        return {"E2b-Sandbox-Id": made["sandboxID"], "X-Access-Token": made["envdAccessToken"]}


@pytest.fixture(scope="session")
def sandbox_server():
    """A real server on this machine, for all tests; one that a test ends or overloads is the test's own."""
    for module in ("e2b", "starlette", "uvicorn"):
        pytest.importorskip(module)
    try:
        probe()
    except ConfigurationError as error:
        pytest.skip(str(error))
    from tiltyard.sandbox.server import LocalSandboxServer  # noqa: PLC0415 - it needs the extra

    with LocalSandboxServer(warm=2) as server:
        yield server


@pytest.fixture(scope="session")
def sdk(sandbox_server):
    """E2B's SDK, bound to the server."""
    import e2b  # noqa: PLC0415 - it needs the extra

    return e2b.E2B(api_url=sandbox_server.url, sandbox_url=sandbox_server.url, api_key=sandbox_server.api_key)


@pytest.fixture
def sandbox(sdk):
    """A sandbox that is killed after the test, if the test has not."""
    made = sdk.Sandbox.create("base", timeout=120)
    yield made
    made.kill()


@pytest.fixture(scope="session")
def wire(sandbox_server):
    """Requests that no SDK would send."""
    import httpx  # noqa: PLC0415 - it comes with the extra

    with httpx.Client(base_url=sandbox_server.url, timeout=30) as http:
        yield Wire(http, sandbox_server.url, sandbox_server.api_key)
