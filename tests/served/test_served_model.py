"""A real model behind a real OpenAI-compatible server: SmolLM2-135M-Instruct with llama.cpp."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from server import CONTEXT, MODEL

from tiltyard import (
    ConcurrentRollout,
    Job,
    Limits,
    OpenAI,
    Prompt,
    PromptTooLongError,
    Task,
    load_manifest,
    load_model,
    make_renderer,
)
from tiltyard.cli import main
from tiltyard.demo.boxes import Boxes
from tiltyard.manifest import manifest_to_yaml
from tiltyard.play import new_request, play_manifest
from tiltyard.train.episodes import SilentEpisodes
from tiltyard.train.run_folder import RunFolder

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFEST = """
environment: {env_type: rollout, entrypoint: 'tiltyard.demo.boxes:Boxes', max_reward: 5.0}
model: {name: smollm2-135m-instruct}
rollout: {max_tokens_per_turn: 8, length_reward: -1.0}
"""


@pytest.fixture
def manifest(tmp_path):
    """The demo's game."""
    path = tmp_path / "m.yaml"
    path.write_text(MANIFEST)
    return str(path)


def asked(text):
    messages = ({"role": "user", "content": text},)
    return Prompt(messages=messages, new=messages, seed=1)


def test_fifty_requests_eight_at_a_time_are_all_answered(model_server):
    """The server is sound enough to test against: whole answers, and after them it is still well."""

    async def ask_all():
        room = asyncio.Semaphore(8)
        async with OpenAI(MODEL, model_server.base_url) as api:

            async def ask(number):
                async with room:
                    return await api.reply(asked(f"Say the number {number}."), max_tokens=12)

            return await asyncio.gather(*map(ask, range(50)))

    replies = asyncio.run(ask_all())
    assert all(reply.text and reply.finish_reason in ("stop", "length") for reply in replies)
    assert all(0 < reply.sampled_tokens <= 12 for reply in replies)


def test_a_prompt_beyond_the_context_is_named_as_that(model_server):
    """The server refuses it; the episode would end truncated, not failed."""
    api = OpenAI(MODEL, model_server.base_url)
    with pytest.raises(PromptTooLongError, match="context"):
        asyncio.run(api.reply(asked("a b c " * CONTEXT), max_tokens=4))


def test_the_servers_tokens_are_those_that_the_local_model_is_trained_on(model_server):
    """Prompts and bridges of llama.cpp are those of our renderer, token for token, and every sampled id has its
    log-probability: the episodes can be trained on."""
    loaded = load_model("smollm2-135m-instruct")
    renderer = make_renderer(loaded.tokenizer)
    sampling = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    api = OpenAI(MODEL, model_server.base_url, token_ids="llama.cpp", sampling=sampling)
    rollout = ConcurrentRollout(api, Limits(max_turns=5, max_tokens_per_turn=8, length_reward=-1.0), seed=0)
    jobs = [Job(Boxes(), Task(seed=2 * i, row_index=i), f"e{i}") for i in range(24)]
    trajectories = rollout.run(jobs)
    assert [t.ending.value for t in trajectories if t.failed] == []
    assert rollout.ledger.ok
    assert rollout.ledger.extended > 0
    for trajectory in trajectories:
        transcript = trajectory.transcript
        assert transcript is not None, trajectory.untrainable
        before = trajectory.messages[: 1 + len(Boxes.examples) + 1]  # the rules, the examples, the first question
        assert transcript.ids[: transcript.mask.index(True)] == renderer.opening(before)
        for logprob, sampled in zip(transcript.logprobs, transcript.mask, strict=True):
            assert (logprob is not None) == sampled


def test_eval_prints_pass_at_k_with_intervals(model_server, manifest, tmp_path, capsys):
    """`tiltyard eval` over a served model, from the command to the table and the summary."""
    out = tmp_path / "run"
    command = ["eval", manifest, "-k", "4", "--tasks", "8", "--api", model_server.base_url, "--model", MODEL]
    assert main([*command, "--token-ids", "llama.cpp", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"finished 32 of 32 episodes", printed)
    assert len(re.findall(r"(?:avg|pass)@\d +\d\.\d{3}   \[\d\.\d{3}, \d\.\d{3}\] +8$", printed, re.MULTILINE)) == 4
    assert "clean: every later prompt" in printed
    found = json.loads((out / "summary.json").read_text())
    assert (found["failed"], found["missing"], found["leaked"], found["sampled_tokens"] > 32) == (0, 0, 0, True)


class KillsTheServer(SilentEpisodes):
    """Kills the server when so many episodes are finished."""

    def __init__(self, server, after):
        self.server, self.after = server, after

    def episode_finished(self, progress):
        if progress.finished == self.after:
            self.server.kill()


def test_a_killed_server_costs_no_finished_episode_and_resume_completes_the_rest(
    own_server, manifest, tmp_path, read_lines
):
    """The run ends with at least 8 finished episodes on disk and a reason for each of the others; the server comes
    back at the same address, and only the others are played again."""
    loaded, out = load_manifest(manifest), tmp_path / "run"
    given = {"split": "train", "tasks": 6, "samples": 4, "url": own_server.base_url, "model": MODEL, "concurrency": 4}
    request = new_request({**given, "timeout_s": 10.0})
    folder = RunFolder.create(out, manifest_to_yaml(loaded))
    killed = KillsTheServer(own_server, after=8)
    summary = play_manifest(loaded, folder, request, killed)
    whole = {line["episode_id"] for line in read_lines(out / "trajectories.jsonl") if not line["failed"]}
    assert len(whole) >= 8
    assert (summary["episodes"], summary["failed"], list(summary["errors"])) == (24, 24 - len(whole), ["api_error"])
    own_server.start()
    assert main(["rollout", "--resume", str(out), "--timeout", "600"]) == 0
    again = {line["episode_id"] for line in read_lines(out / "trajectories.jsonl") if line["attempt"] == 1}
    assert (len(again), again & whole) == (24 - len(whole), set())
    assert json.loads((out / "summary.json").read_text())["failed"] == 0


def test_the_weather_example_calls_its_tool(model_server):
    """Three questions, three tool calls, three answers that say what the tool said."""
    script = [sys.executable, str(EXAMPLES / "weather_api.py"), model_server.base_url, MODEL]
    printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert printed.count("'name': 'weather'") == 3
    assert printed.count("     tool: ") == 3
    assert printed.count("reward: 1.0, ended with 'stop'") == 3
