"""Servers that are overloaded, die and come back, under many episodes at once."""

import threading

from tiltyard.policies.openai import OpenAI
from tiltyard.rollout.concurrent import ConcurrentRollout
from tiltyard.rollout.jobs import Job
from tiltyard.rollout.limits import Limits
from tiltyard.testing.guess import GuessEnv
from tiltyard.testing.openai_server import Answer, OpenAIServer
from tiltyard.types import Task

SEED = 0
"""Of a game that 7 wins."""


def run(server, episodes, *, concurrency=64, on_finished=None, **options):
    api = OpenAI("m", server.base_url, **{"retry_delay_s": 0.01, **options})
    jobs = [Job(GuessEnv(), Task(seed=SEED), f"e{number}") for number in range(episodes)]
    return api, ConcurrentRollout(api, Limits(), concurrency=concurrency).run(jobs, on_finished)


def test_a_server_that_refuses_most_requests_loses_no_episode():
    """Three of four requests meet a 429 or a broken connection."""
    faults = [None, Answer(status=429), Answer(disconnect=True), Answer(status=503)] * 150
    with OpenAIServer(["4", "7"], faults=faults) as server:
        api, found = run(server, 100, max_retries=30)
    assert [one.reward for one in found] == [1.0] * 100
    assert api.requests == server.requests == 200 + api.retried


def test_a_storm_is_bounded():
    """A server that only refuses is asked so often for each episode, and no more; each fails with its words."""
    with OpenAIServer([Answer(status=429, error="slow down")]) as server:
        _, found = run(server, 50, max_retries=2)
    assert server.requests == 150
    assert {one.ending.value for one in found} == {"api_error"}
    assert all("slow down" in one.error for one in found)


def test_a_server_that_dies_fails_what_it_had_not_answered():
    """What was finished before is whole; the run ends, and every failure has its reason."""
    server = OpenAIServer(["4", "7"], latency_s=0.005)
    server.start()
    finished = []

    def count(trajectory):
        finished.append(trajectory)
        if len(finished) == 20:
            threading.Thread(target=server.stop).start()

    _, found = run(server, 200, concurrency=16, on_finished=count, max_retries=1)
    server.stop()
    done = [one for one in found if not one.failed]
    assert 20 <= len(done) < 200
    assert all(one.reward == 1.0 for one in done)
    assert all("gave no answer" in one.error and one.reward is None for one in found if one.failed)


def test_a_server_that_comes_back_completes_the_run():
    """Killed in the middle and started again: the retries carry every episode over."""
    server = OpenAIServer(["4", "7"], latency_s=0.005)
    server.start()
    finished = []

    def restart():
        server.stop()
        threading.Timer(0.2, server.start).start()

    def count(trajectory):
        finished.append(trajectory)
        if len(finished) == 50:
            threading.Thread(target=restart).start()

    try:
        api, found = run(server, 200, concurrency=32, on_finished=count, max_retries=40)
    finally:
        server.stop()
    assert [one.reward for one in found] == [1.0] * 200
    assert api.retried > 0
