"""Datasets of Reasoning Gym ask and score as one-turn text environments."""

import pytest

from tiltyard.envs.check import check_env
from tiltyard.envs.library.reasoning_gym import make
from tiltyard.errors import ConfigurationError, EpisodeOverError

SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}
NAMES = (
    "chain_sum",
    "leg_counting",
    "letter_counting",
    "spell_backward",
    "number_sorting",
    "countdown",
    "word_sorting",
)


def sums(**options):
    return make("chain_sum", **{"size": 50, "held_out": 20, "config": SUMS, **options})


@pytest.mark.parametrize("name", NAMES)
def test_the_expected_answer_scores_1_and_none_scores_less(name):
    """The score is the library's own."""
    env = make(name, size=5, held_out=5)
    question, _ = env.reset(row_index=2)
    assert question
    *_, info = env.step("I give up.")
    assert not info["formatted"]
    env.reset(row_index=2)
    text, reward, done, truncated, info = env.step(f"So: <answer>{info['expected']}</answer>")
    assert (text, reward, done, truncated, info["success"]) == ("", 1.0, True, False, True)


def test_a_row_is_the_same_question_each_time_and_in_each_instance():
    """The generator is seeded by the manifest, not by the episode."""
    assert sums().reset(seed=1, row_index=7) == sums().reset(seed=2, row_index=7)
    assert sums().reset(row_index=7) != sums(seed=1).reset(row_index=7)


def test_no_held_out_question_is_a_training_question():
    """A small domain repeats its questions; the held-out ones that training asks are left out."""
    env = make("chain_sum", size=300, held_out=100, config={**SUMS, "min_digits": 1, "max_digits": 1})
    asked = {env.reset(row_index=row)[0] for row in range(300)}
    held_out = {env.reset(row_index=row, evaluation=True)[0] for row in range(env.evaluation_size)}
    assert 0 < len(held_out) == env.evaluation_size < 100
    assert not asked & held_out


def test_the_size_is_that_of_the_split_served_last():
    """As for every environment that is made of rows."""
    env = sums()
    assert env.dataset_size == 50
    env.reset(row_index=0, evaluation=True)
    assert env.dataset_size == env.evaluation_size <= 20


def test_a_domain_without_unseen_questions_is_refused():
    """Held-out rows that training asks would measure nothing."""
    config = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    with pytest.raises(ConfigurationError, match="training questions too"):
        make("chain_sum", size=20000, held_out=5, config=config)


def test_a_row_that_is_not_there_is_refused():
    """With the rows that there are."""
    with pytest.raises(ConfigurationError, match="0 to 49"):
        sums().reset(row_index=50)


def test_a_question_is_answered_once():
    """Another answer needs another reset."""
    env = sums()
    env.reset(row_index=0)
    env.step("<answer>1</answer>")
    with pytest.raises(EpisodeOverError):
        env.step("<answer>2</answer>")


def test_the_whole_answer_can_be_what_is_scored():
    """Without tags; more than the answer earns less than the answer alone."""
    env = sums(answer="whole")
    assert env.system_prompt is None
    scores = []
    for text in ("{}", "It is {}.", "no"):
        expected = env._rows[3]["answer"]
        env.reset(row_index=3)
        scores.append(env.step(text.format(expected))[1])
    assert scores[0] == 1.0 > scores[1] > scores[2]


def test_another_form_of_answer_is_refused():
    """With the two that there are."""
    with pytest.raises(ConfigurationError, match="'tags' or 'whole', got 'xml'"):
        sums(answer="xml")


def test_unknown_datasets_and_settings_are_named():
    """The nearest dataset, and the setting that it does not take."""
    with pytest.raises(ConfigurationError, match="'chain_sum'"):
        make("chainsum")
    with pytest.raises(ConfigurationError, match="terms"):
        make("chain_sum", config={"terms": 2})


def test_a_dataset_passes_the_check_of_environments():
    """What users are told to run accepts it."""
    report = check_env(sums)
    assert report.ok, str(report)
