"""One rule makes the text that the model sees of an observation."""

import dataclasses
import json
import os

import numpy as np
import pydantic
import pytest

from tiltyard.envs.observation import clip_observation, process_observation
from tiltyard.errors import EnvError


class Payload(pydantic.BaseModel):
    message: str
    board: list[int] = []
    reward: float = 1.0
    done: bool = True
    metadata: dict = {"answer": 42}


@dataclasses.dataclass
class Output:
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ("as is ", "as is "),
        (None, ""),
        ("", ""),
        (b"\xff\x00ok", "\ufffd\x00ok"),
        ({"board": [1, 2], "ok": True}, '{"board": [1, 2], "ok": true}'),
        ({"text": None}, ""),
        (["a", {"type": "text", "text": "b"}], '["a", {"type": "text", "text": "b"}]'),
        (7, "7"),
        ({"message": "hi", "reward": 1.0, "done": True, "metadata": {"answer": 42}}, "hi"),
        ({"message": "hi", "board": [1]}, '{"message": "hi", "board": [1]}'),
        ({"message": "hi", "error": None, "log": ""}, "hi"),
        ({"result": {"stdout": "out\n", "stderr": "oops", "exit_code": 2}}, "out\n[stderr]\noops\n[exit code: 2]"),
        ({"stdout": "out", "stderr": "", "exit_code": 0}, "out"),
        ({"stdout": "", "exit_code": 3}, "[exit code: 3]"),
        ({"stdout": "out", "cwd": "/w"}, '{"stdout": "out", "cwd": "/w"}'),
        ({"exit_code": 3}, '{"exit_code": 3}'),
        ({"count": 0}, '{"count": 0}'),
        ({"content": ["a"]}, '["a"]'),
        ({"s": {3, 1, 2}, "a": np.arange(3), "f": np.float32(0.5)}, '{"s": [1, 2, 3], "a": [0, 1, 2], "f": 0.5}'),
        (Payload(message="hi"), "hi"),
        (Payload(message="hi", board=[1]), '{"message": "hi", "board": [1]}'),
        (Output("a", "b", 1), "a\n[stderr]\nb\n[exit code: 1]"),
        (np.array([1, 2]), "[1, 2]"),
        (object(), "[a result of type object that cannot be shown as text: it has no text form]"),
    ],
)
def test_a_payload_has_one_text(payload, text):
    """Usual fields by their value, more than one as JSON, never reward, done or metadata (case OB-01, T7)."""
    assert process_observation(payload) == text


def test_one_field_can_be_asked_for():
    """A field that is not there is named along with those that are."""
    assert process_observation({"a": "x", "b": "y"}, "b") == "y"
    with pytest.raises(EnvError, match=r"no field 'c'; it has the fields \['a', 'b'\]"):
        process_observation({"a": 1, "b": 2}, "c")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (json.loads('"\\ud83e\\uddea ok"'), "\U0001f9ea ok"),
        (json.loads('"\\ud83e tail"'), "\ufffd tail"),
        (os.fsdecode(b"\xff"), "\ufffd"),
        ("\x1b[31mERR\x1b[0m", "\x1b[31mERR\x1b[0m"),
        ("a\x00b", "a\x00b"),
    ],
)
def test_lone_surrogates_are_replaced_and_the_rest_is_kept(text, shown):
    """What comes out can be encoded; terminal escapes stay (case OB-02)."""
    assert process_observation(text) == process_observation({"text": text}) == shown
    assert process_observation({"a": text, "b": 1}).encode()


def test_a_cut_keeps_head_and_tail_within_the_budget():
    """The text says how much is missing of how much."""
    text, cut = clip_observation("a" * 500 + "b" * 500, 200)
    assert (len(text), cut) == (200, True)
    assert text.startswith("aaa")
    assert text.endswith("bbb")
    assert "[… 800 of 1000 characters cut …]" in text
    assert clip_observation("short", 200) == ("short", False)
    assert clip_observation("a" * 500, None) == ("a" * 500, False)
