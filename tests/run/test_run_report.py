"""What a run says in the terminal: lines on its way and words at its end."""

import io
import re
from pathlib import Path

import pytest

from tiltyard.report.summary import score_text, summary_text
from tiltyard.report.terminal import LiveProgress, PlainProgress, terminal_observer


def evaluated(mean, low, high, **other):
    reward = {"mean": 2.5, "low": 2.0, "high": 3.0, "n": 200}
    figures = {"metric": "success", "mean": mean, "low": low, "high": high, "n": 200, "reward": reward, "valid": None}
    return {**figures, "turns": 3.25, "turns_to_success": 2.5, "failed": 0, "unscored": 3, **other}


SUMMARY = {
    "folder": "/runs/one",
    "steps": 20,
    "steps_done": 20,
    "optimiser_steps": 20,
    "interrupted": False,
    "seconds": 301.2,
    "eval_before": evaluated(0.22, 0.17, 0.28),
    "eval_after": evaluated(0.89, 0.83, 0.92, failed=2),
    "episodes": 1682,
    "failed": 3,
    "truncated": 40,
    "endings": {"done": 1639, "length": 40, "env_error": 3},
    "errors": {"env_error": "00003-001-02: EnvError: Guess.step raised OSError: gone\nand more"},
    "leaked": 0,
    "ledger": {"verdict": "clean: every prompt extended"},
}

STEP = {
    "step": 3,
    "reward": 0.5,
    "success": 0.25,
    "valid": None,
    "tokens_per_s": 123.4,
    "failed": 1,
    "truncated": 0,
    "skipped": False,
}


def test_a_run_that_changed_no_weight_says_so_first():
    """Training on nothing is not success."""
    assert summary_text({**SUMMARY, "optimiser_steps": 0}).startswith("NOTHING WAS LEARNED in 20 of 20 steps")


def test_the_summary_says_what_improved_what_failed_and_whether_to_trust_the_tokens():
    """One line for each, and every kind of failure with its meaning."""
    assert summary_text(SUMMARY).splitlines() == [
        "finished 20 of 20 steps in 5 min 01 s",
        "before     success 0.220 [0.170, 0.280] (n=200), reward 2.500, turns 3.2, turns to success 2.5",
        (
            "after      success 0.890 [0.830, 0.920] (n=200), reward 2.500, turns 3.2, turns to success 2.5, "
            "2 failed, not counted"
        ),
        "change     +0.670 on held-out tasks: better, the 95 % intervals are apart",
        "episodes   1682 played, 3 failed, 40 truncated (1639 done, 40 length, 3 env_error)",
        "           env_error: the environment raised, hung or broke its protocol",
        "           such as: 00003-001-02: EnvError: Guess.step raised OSError: gone",
        "tokens     clean: every prompt extended",
        "leases     leaked=0",
        "folder     /runs/one",
    ]


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (evaluated(0.30, 0.24, 0.37), "the 95 % intervals overlap, so this can be chance"),
        (evaluated(0.05, 0.02, 0.09), "worse, the 95 % intervals are apart"),
        (evaluated(1.0, None, None), "too few episodes to tell"),
    ],
)
def test_a_change_is_only_called_better_when_the_intervals_are_apart(after, words):
    """A higher mean within the noise is called chance."""
    assert words in summary_text({**SUMMARY, "eval_after": after})


def test_what_an_environment_raised_does_not_move_the_cursor():
    """Its first line is shown, without control characters."""
    text = summary_text({**SUMMARY, "errors": {"env_error": "OSError: a\x1b[2J\x07b\nc"}})
    assert "           such as: OSError: a [2J b\n" in text


def test_figures_of_two_metrics_are_not_subtracted():
    """A success rate and a mean reward have no difference."""
    reward = {**evaluated(-1.0, -1.0, -1.0), "metric": "reward"}
    assert "change" not in summary_text({**SUMMARY, "eval_after": reward})


def test_an_interrupted_run_says_so_first():
    """It may have no evaluation at all."""
    text = summary_text({**SUMMARY, "interrupted": True, "steps_done": 4, "eval_before": None, "eval_after": None})
    assert text.startswith("interrupted after 4 of 20 steps in 5 min 01 s\nepisodes ")


def test_an_evaluation_in_which_everything_failed_has_no_figure():
    """None is said as none."""
    nothing = {"mean": None, "low": None, "high": None, "n": 0}
    text = score_text({**nothing, "metric": "reward", "reward": nothing, "valid": None, "turns": None,
                       "turns_to_success": None, "failed": 8, "unscored": 1})  # fmt: skip
    assert text == "reward none, 8 failed, not counted, 1 unscored, not counted"


def play(observer):
    observer.run_started(Path("/runs/one"), done=2, steps=4)
    observer.phase_started("train", 2)
    observer.episode_finished()
    observer.episode_finished()
    observer.step_finished(STEP)
    observer.phase_started("eval_after", 2)
    observer.evaluated("eval_after", evaluated(0.89, 0.83, 0.92))
    observer.run_finished()


def test_without_a_terminal_there_is_one_plain_line_a_step():
    """No control characters, nothing rewritten; figures that the environment does not give are left out."""
    stream = io.StringIO()
    play(PlainProgress(stream))
    assert re.sub(r"\d+:\d\d left", "TIME left", stream.getvalue()).splitlines() == [
        "run folder /runs/one, resumed after step 2",
        "step 3/4  reward 0.500  success 0.25  123 tokens/s  1 failed  TIME left",
        "eval_after: 2 episodes",
        "eval_after: success 0.890 [0.830, 0.920] (n=200), reward 2.500, turns 3.2, turns to success 2.5",
    ]


def test_a_step_that_taught_nothing_says_so():
    """All groups did equally well or badly, or failed: the weights stayed as they were."""
    stream = io.StringIO()
    PlainProgress(stream).step_finished({**STEP, "skipped": True})
    assert "1 failed  nothing to learn from" in stream.getvalue()


def test_a_stream_that_is_no_terminal_gets_plain_lines():
    """A log file is not drawn on."""
    assert isinstance(terminal_observer(io.StringIO()), PlainProgress)


def test_the_live_progress_prints_the_same_lines():
    """The bars come and go; the lines of the steps stay."""
    stream = io.StringIO()
    play(LiveProgress(stream))
    assert "step 3/4  reward 0.500  success 0.25  123 tokens/s  1 failed" in stream.getvalue()
    assert "eval_after: success 0.890 [0.830, 0.920]" in stream.getvalue()
