"""What is said while episodes are played, and when they are."""

import io
import re
from pathlib import Path

from tiltyard.report.playing import LiveEpisodes, PlainEpisodes, episode_observer, episodes_text
from tiltyard.train.episodes import Progress

FOLDER = Path("/runs/[one]")


def progress(finished, played, to_play=100, tokens=0, **failed):
    return Progress(planned=100, finished=finished, failed=failed, played=played, to_play=to_play, tokens=tokens)


def said(observer, stream, reports, start):
    observer.started(FOLDER, start)
    for report in reports:
        observer.episode_finished(report)
    observer.ended()
    return re.sub(r"\d+:\d\d left|[\d,]+ tokens/s", "N", stream.getvalue()).splitlines()


def test_without_a_terminal_there_are_at_most_twenty_lines():
    """A line for each twentieth, however many episodes there are; no control characters."""
    stream = io.StringIO()
    lines = said(PlainEpisodes(stream), stream, [progress(i, i) for i in range(1, 101)], progress(0, 0))
    assert lines[0] == "run folder /runs/[one]: 100 episodes"
    assert lines[1:3] == ["5/100 done  N", "10/100 done  N"]
    assert (len(lines), lines[-1]) == (21, "100/100 done")


def test_failures_are_named_with_their_reason_as_they_come():
    """Beside them stand the tokens a second and the time left."""
    stream = io.StringIO()
    reports = [progress(90, 5, to_play=17, tokens=50, api_error=2, env_error=1)]
    lines = said(PlainEpisodes(stream), stream, reports, progress(83, 0, to_play=17, api_error=5))
    assert lines == [
        "run folder /runs/[one]: 83 of 100 finished before, 17 to play (5 failed, 12 missing)",
        "90/100 done  3 failed (2 api_error, 1 env_error)  N  N",
    ]


def test_a_stream_that_is_no_terminal_gets_plain_lines():
    """A log file is not drawn on."""
    assert isinstance(episode_observer(io.StringIO()), PlainEpisodes)


def test_the_live_progress_begins_with_the_same_line():
    """The bar comes and goes; a path with square brackets is no markup."""
    stream = io.StringIO()
    lines = said(LiveEpisodes(stream), stream, [progress(1, 1, api_error=1)], progress(0, 0))
    assert "run folder /runs/[one]: 100 episodes" in lines


def interval(mean):
    return {"mean": mean, "low": None, "high": None, "n": 2}


def test_without_success_the_table_has_the_reward_and_says_why():
    """Failures have their meaning and what one of them said, a long reason on one line."""
    nothing = {"metric": "reward", "valid": None, "turns": 2.0, "turns_to_success": None, "failed": 1, "unscored": 0}
    samples = {"tasks": 2, "samples": 2, "success": None, "reward": interval(1.5), "pass_at": {}, "left_out": {}}
    summary = {
        "phase": "rollout",
        "evaluations": {
            "rollout": {
                **nothing,
                **interval(1.5),
                "reward": interval(1.5),
                "samples": {**samples, "intervals": {"reward": "Student's t", "success": "Wilson's"}},
            }
        },
        "interrupted": False,
        "planned": 4,
        "seconds": 61.0,
        "episodes": 4,
        "failed": 1,
        "truncated": 0,
        "endings": {"done": 3, "env_error": 1},
        "errors": {"env_error": "EnvError: broke\nTraceback"},
        "sampled_tokens": 0,
        "tokens_per_s": None,
        "untrainable": None,
        "ledger": {"sampled": 0},
        "leaked": 0,
        "folder": "/runs/one",
    }
    assert episodes_text(summary).splitlines() == [
        "finished 3 of 4 episodes in 1 min 01 s",
        "rollout    reward 1.500 (n=2), turns 2.0, 1 failed, not counted",
        "                       mean   95 % interval   tasks",
        "           reward     1.500   none                2",
        "           2 tasks, 2 episodes each; intervals: Student's t",
        "           no pass@k: neither info['success'] nor environment.max_reward says what success is",
        "episodes   4 played, 1 failed, 0 truncated (3 done, 1 env_error)",
        "           env_error: the environment raised, hung or broke its protocol",
        "           such as: EnvError: broke",
        "tokens     none were sampled",
        "leases     leaked=0",
        "folder     /runs/one",
    ]
