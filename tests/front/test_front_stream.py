"""Results that come as they are ready: for more trajectories than fit in memory."""

import asyncio
import gc
import itertools
import tracemalloc

import pytest
from front_scripts import ASK, BOTH, RENDERER, SUBMIT, TOKENIZER, Lab, call, rows, served

from tiltyard.errors import ConfigurationError
from tiltyard.policies.base import Sampled
from tiltyard.rollout.api_multi_turn import APIMultiTurnRollout
from tiltyard.rollout.multi_turn import MultiTurnRollout
from tiltyard.rollout.trace import read_traces
from tiltyard.types import Reply


@pytest.mark.parametrize("make", BOTH)
def test_a_stream_gives_every_trajectory_once(make):
    """In the order in which they finish."""
    results = list(make([call("add", a=1, b=2), SUBMIT], env_factory=Lab).stream(rows(20, id="a")))
    assert {result["episode_id"] for result in results} == {f"a-0000-{number:03d}" for number in range(20)}
    assert {result["reward"] for result in results} == {1.25}


@pytest.mark.parametrize("make", BOTH)
def test_a_stream_takes_trajectories_as_there_is_room(make):
    """An endless source is read only as far as is played; closing the stream ends the run and its environments."""
    taken, made = [], []

    def source():
        for number in itertools.count():
            taken.append(number)
            yield {"messages": [ASK]}

    def factory():
        made.append(Lab())
        return made[-1]

    stream = make([SUBMIT], env_factory=factory, concurrency=4, preflight=False).stream(source())
    first = [next(stream) for _ in range(10)]
    stream.close()
    assert [result["reward"] for result in first] == [1.0] * 10
    assert len(taken) <= 10 + 5 * 4
    assert [env.closed for env in made] == [1] * len(made)


@pytest.mark.parametrize("make", BOTH)
def test_what_escapes_a_stream_reaches_its_reader(make):
    """After the results that were ready."""

    def source():
        yield {"messages": [ASK]}
        yield "no trajectory"

    with pytest.raises(ConfigurationError, match="trajectory 1 is a str"):
        list(make([SUBMIT], env_factory=Lab, concurrency=1).stream(source()))


@pytest.mark.parametrize("make", BOTH)
def test_scores_are_made_while_others_play(make):
    """A stream is scored as a call is."""

    async def half(trajectory):
        await asyncio.sleep(0)
        return 0.5

    results = list(make([SUBMIT], env_factory=Lab, reward_fns=[half], concurrency=3).stream(rows(10)))
    assert [result["reward"] for result in results] == [0.5] * 10


def test_a_stream_can_be_awaited():
    """`async for` on the caller's own loop."""

    async def main():
        rollout = served([SUBMIT], env_factory=Lab, concurrency=2)
        return [result["reward"] async for result in rollout.stream_async(rows(7))]

    assert asyncio.run(main()) == [1.0] * 7


class Terse:
    """A served model without tokens or memory."""

    async def reply(self, prompt, *, max_tokens):
        return Reply("3")

    async def __aenter__(self):
        return self

    async def __aexit__(self, *raised):
        return None


class TerseTokens:
    """The same as a local model."""

    context_length = None

    def sample(self, requests):
        return [Sampled((ord("3"), TOKENIZER.eos_token_id), (-0.5, -0.5), "stop") for _ in requests]

    def release(self, keys):
        pass


def terse_local(**options):
    return MultiTurnRollout(TerseTokens(), renderer=RENDERER, **options)


def terse_served(**options):
    return APIMultiTurnRollout(Terse(), **options)


def peak_bytes(make, count, folder):
    """What a stream of that many holds at most, beside the ids that tell episodes apart."""
    rollout = make(concurrency=32, trace_dir=folder)
    source = ({"messages": [{"role": "user", "content": "x" * 100}], "number": number} for number in range(count))
    gc.collect()
    tracemalloc.start()
    seen = 0
    for result in rollout.stream(source):
        assert result["stop_reason"] == "stop"
        seen += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == count
    assert sum(1 for _ in read_traces(rollout.traces.path)) == count
    return peak


@pytest.mark.parametrize("make", [terse_local, terse_served])
@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_number_of_trajectories(make, count, tmp_path):
    """What is kept of a finished episode is its id: less than 500 bytes, where a result is several KB."""
    few = peak_bytes(make, 200, tmp_path / "few")
    many = peak_bytes(make, count, tmp_path / "many")
    assert many - few < 500 * count
