"""Addresses of servers, as people write them."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tiltyard import ConfigurationError
from tiltyard.envs.openenv.address import http_url, is_local, shown, ws_url
from tiltyard.envs.openenv.mcp import speaks_mcp


@pytest.mark.parametrize(
    ("given", "dialled"),
    [
        ("https://h.example/envs/a/", "wss://h.example/envs/a/ws"),
        ("http://127.0.0.1:8000", "ws://127.0.0.1:8000/ws"),
        ("ws://h:8000/ws", "ws://h:8000/ws"),
        ("HTTPS://H.example", "wss://h.example/ws"),
        ("h.example:8000", "ws://h.example:8000/ws"),
        ("https://h.example/a?token=t", "wss://h.example/a/ws?token=t"),
        ("http://[::1]:8000/", "ws://[::1]:8000/ws"),
        (" wss://h.example/ws/ ", "wss://h.example/ws"),
    ],
)
def test_every_form_of_a_url_is_dialled_at_its_sessions(given, dialled):
    """OE-03: schemes in any case, a prefix, a slash, a query, and the path itself."""
    assert ws_url(given) == dialled


@pytest.mark.parametrize("given", ["ftp://h", "", "  ", "http://h h/", "http://", "http://h:port", None])
def test_what_is_no_url_is_refused(given):
    """OE-03: at construction, and by name."""
    with pytest.raises(ConfigurationError, match="base_url"):
        ws_url(given)


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("ws://localhost:1/ws", True),
        ("ws://127.0.0.1/ws", True),
        ("ws://[::1]:8/ws", True),
        ("ws://0.0.0.0:8000/ws", True),
        ("ws://[::]:8000/ws", True),
        ("ws://127.0.0.2/ws", True),
        ("ws://[::ffff:127.0.0.1]/ws", True),
        ("ws://env.localhost/ws", True),
        ("ws://127.0.0.1.example.com/ws", False),
        ("ws://my-localhost/ws", False),
    ],
)
def test_only_this_machines_own_addresses_go_past_the_proxy(url, local):
    """OE-03: the host decides, not a piece of its name."""
    assert is_local(url) is local


def test_a_message_shows_no_secret():
    """Tokens and passwords stay out of logs."""
    assert shown("wss://me:pw@h/ws?token=abc&x=1") == "wss://me:***@h/ws?token=***&x=1"


def test_a_server_that_took_the_place_of_another_is_asked_anew():
    """What the one before it said of its actions is not true of it."""
    actions = [{"title": "Action", "properties": {}}, {"title": "Move", "properties": {"to": {}}}]

    class Schema(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"action": actions.pop(0)}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *what):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Schema) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"ws://127.0.0.1:{server.server_port}/ws"
        assert [speaks_mcp(url, None), speaks_mcp(url, None)] == [True, False]
        server.shutdown()


def test_other_endpoints_lie_beside_the_sessions():
    """The prefix and the query go along."""
    assert http_url("wss://h/a/ws?token=t", "schema") == "https://h/a/schema?token=t"
