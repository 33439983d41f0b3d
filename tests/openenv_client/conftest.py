"""A server that does what no openenv server would."""

import json
import threading

import pytest
from websockets.sync.server import serve


def answer(message, reward=0.0):
    return json.dumps({"type": "observation", "data": {"observation": {"message": message}, "reward": reward}})


def session(socket):
    for text in socket:
        asked = json.loads(text)
        word = (asked.get("data") or {}).get("message", "")
        if asked["type"] == "close":
            return
        if asked["type"] == "state":
            socket.send('{"type":"state","data":{}}')
        elif word == "not json":
            socket.send("<html>")
        elif word == "a list":
            socket.send("[1]")
        elif word == "another kind":
            socket.send('{"type":"state","data":{}}')
        elif word == "nan":
            socket.send('{"type":"observation","data":{"observation":{},"reward":NaN,"done":false}}')
        elif word == "twice":
            socket.send(answer("first"))
            socket.send(answer("second"))
        elif word == "in pieces":
            socket.send(iter([answer("whole")[:10], answer("whole")[10:]]))
        elif word == "surrogate":
            socket.send('{"type":"observation","data":{"observation":{"message":"\\ud83e tail"},"reward":0.0}}')
        elif word == "restart":
            socket.close(1001, "restarting")
            return
        elif word == "plain text":
            socket.send('{"type":"observation","data":{"observation":"just text","reward":1}}')
        else:
            socket.send(answer(word))


@pytest.fixture(scope="session")
def strange():
    """Its URL; `socket.send` of a list is a message in fragments."""
    with serve(session, "127.0.0.1", 0, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()
