"""What a set of episodes amounts to."""

import pytest

from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.transcript import Transcript
from tiltyard.train.evaluate import as_success, score
from tiltyard.train.metrics import Totals, step_metrics
from tiltyard.types import Task


def played(*rewards, ending=Ending.DONE, success=None, tokens=0, **info) -> Trajectory:
    transcript = None
    if tokens:
        transcript = Transcript()
        transcript.observe([1, 2])
        for _ in rewards:
            transcript.sample([3] * tokens, [-0.5] * tokens)
    return Trajectory(
        "e", Task(), ending, rewards=rewards, info=info, success=success, transcript=transcript,
        error="EnvError: broke" if ending.failed else None,
    )  # fmt: skip


def test_success_is_what_the_environment_calls_success():
    """`info["success"]` decides; the reward does not."""
    found = score([played(1.0, success=False), played(0.0, success=True), played(0.0, success=True)], max_reward=1.0)
    assert (found.metric, found.value.mean, found.value.n) == ("success", pytest.approx(2 / 3), 3)


def test_an_episode_that_ended_without_the_word_did_not_succeed():
    """Once the environment speaks of success, silence is not success."""
    found = score([played(1.0, success=True), played(1.0, ending=Ending.MAX_TURNS)])
    assert (found.value.mean, found.value.n, found.truncated) == (0.5, 2, 1)


def test_a_word_elsewhere_in_the_run_makes_silent_episodes_ones_without_success():
    """An evaluation whose episodes were all cut before their end is still measured in successes."""
    found = score([played(-1.0, ending=Ending.LENGTH)] * 4, success_known=True)
    assert (found.metric, found.value.mean, found.value.n) == ("success", 0.0, 4)


def test_a_silent_evaluation_is_restated_once_the_environment_speaks():
    """Results before and after training are of one metric, or cannot be compared; failed ones still do not count."""
    silent = [played(-1.0, ending=Ending.LENGTH)] * 4
    before = score([*silent, played(ending=Ending.ENV_ERROR)]).as_dict()
    assert before["metric"] == "reward"
    assert as_success(before) == score([*silent, played(ending=Ending.ENV_ERROR)], success_known=True).as_dict()


def test_an_evaluation_of_success_is_not_restated():
    """What was counted stays."""
    counted = score([played(1.0, success=True), played(0.0)]).as_dict()
    assert as_success(counted) == counted


def test_without_the_word_success_is_the_highest_reward():
    """`max_reward` decides where the environment is silent; turns add up."""
    found = score([played(0.5, 0.5), played(0.5)], max_reward=1.0)
    assert (found.metric, found.value.mean, found.turns, found.turns_to_success) == ("success", 0.5, 1.5, 2.0)


def test_without_either_the_mean_reward_is_the_figure():
    """There is no success to speak of."""
    found = score([played(1.0), played(2.0)])
    assert (found.metric, found.value.mean, found.success) == ("reward", 1.5, None)


def test_failed_episodes_are_counted_apart_and_never_as_zero():
    """A failure lowers no mean; it is in `failed`, and in `endings` with its reason."""
    found = score([played(1.0, success=True), played(ending=Ending.ENV_ERROR), played(ending=Ending.UNSCORED)])
    assert (found.value.mean, found.value.n, found.episodes, found.failed) == (1.0, 1, 3, 2)
    assert found.endings == {"done": 1, "env_error": 1, "unscored": 1}


def test_an_episode_cut_before_its_first_score_did_not_succeed():
    """A model that never ends its turn fails the task, not the run: it counts in the rate and has no reward."""
    cut = Trajectory("e", Task(), Ending.LENGTH, rewards=(None,))
    found = score([played(1.0, success=True), cut])
    assert (found.value.mean, found.value.n, found.reward.mean, found.failed, found.unscored) == (0.5, 2, 1.0, 0, 1)


def test_when_every_episode_failed_there_is_no_figure():
    """None, not 0 and not NaN."""
    found = score([played(ending=Ending.ENV_ERROR)])
    assert (found.value.mean, found.reward.mean, found.turns) == (None, None, None)


def test_valid_counts_turns_where_the_environment_lists_them():
    """`info["valid"]` is one bool, or one for each turn."""
    found = score([played(1.0, valid=[True, False, True]), played(1.0, valid=True)])
    assert found.valid is not None
    assert (found.valid.mean, found.valid.n) == (0.75, 4)


def test_a_score_has_its_figure_on_top():
    """`mean`, `low`, `high` and `n` are what `summary.json` promises."""
    found = score([played(1.0, success=True)] * 10).as_dict()
    assert (found["metric"], found["mean"], found["n"], found["high"]) == ("success", 1.0, 10, 1.0)
    assert found["low"] == pytest.approx(0.7225, abs=1e-4)


def test_a_steps_figures_leave_failed_episodes_out_of_the_means():
    """Their tokens count as sampled, their missing reward counts nowhere."""
    episodes = [played(1.0, tokens=3), played(3.0, tokens=5), played(ending=Ending.ENV_ERROR)]
    found = step_metrics(episodes, max_reward=3.0, seconds={"rollout": 2.0})
    assert (found["reward"], found["reward_std"], found["success"]) == (2.0, 1.0, 0.5)
    assert (found["episodes"], found["failed"], found["sampled_tokens"], found["tokens_per_s"]) == (3, 1, 8, 4.0)
    assert found["valid"] is None


def test_totals_count_every_finished_episode():
    """Failed, truncated and whole ones, each under its ending."""
    totals = Totals()
    for trajectory in (played(1.0, tokens=2), played(0.0, ending=Ending.LENGTH), played(ending=Ending.TOOL_CRASH)):
        totals.add(trajectory)
    endings = {"done": 1, "length": 1, "tool_crash": 1}
    assert totals == Totals(3, 1, 1, endings, 2, {"tool_crash": "e: EnvError: broke"})


def test_each_part_of_the_reward_is_averaged_under_its_name():
    """Over the episodes that have it, failed ones left out; what is no finite number is in no mean (RW-01)."""
    episodes = [
        played(1.0, reward_parts={"format": 1.0, "answer": 0.0}),
        played(0.0, reward_parts={"format": 0.5, "answer": float("nan"), "note": "x"}),
        played(1.0),
        played(ending=Ending.ENV_ERROR, reward_parts={"format": 9.0}),
    ]
    parts = {"reward_parts/format": 0.75, "reward_parts/answer": 0.0}
    figures = score(episodes).as_dict()
    assert {name: figures[name] for name in figures if name.startswith("reward_parts/")} == parts
    line = step_metrics(episodes, max_reward=None, seconds={})
    assert {name: line[name] for name in line if name.startswith("reward_parts/")} == parts


def test_the_figure_is_the_return_of_an_episode_and_not_the_mean_of_its_turns():
    """A short episode and a long one of equal returns are equally good."""
    found = score([played(1.0), played(0.25, 0.25, 0.25, 0.25)])
    assert (found.value.mean, found.value.low, found.value.high, found.value.n) == (1.0, 1.0, 1.0, 2)
