"""What a reward function can ask for, by the names of its parameters."""

import pytest

from tiltyard import ConfigurationError, EnvError, PolicyError
from tiltyard.rewards import Answer, as_rubric

ROW = {"question": "1+1", "answer": "2", "level": 3}
ASKED = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "How much is 1+1?"})


def score(function, completion="It is 2", row=ROW):
    return as_rubric(function).score(Answer(completion, row, ASKED)).reward


def test_parameters_are_filled_in_by_their_names():
    """Their order does not matter, and nothing that is not asked for is given."""
    seen = {}

    def reward(level, completion, row, prompt, messages, trajectory, question, answer, factor=2):
        seen.update({name: value for name, value in locals().items() if name != "seen"})
        return 1

    assert score(reward) == 1.0
    whole = [*ASKED, {"role": "assistant", "content": "It is 2"}]
    assert seen == {
        "level": 3,
        "completion": "It is 2",
        "row": ROW,
        "prompt": list(ASKED),
        "messages": whole,
        "trajectory": {**ROW, "prompt": list(ASKED), "messages": whole},
        "question": "1+1",
        "answer": "2",
        "factor": 2,
    }


@pytest.mark.parametrize(
    "function",
    [
        lambda completion, answer, question: completion == "It is 2" and answer == "2" and question == "1+1",
        lambda completion, solution, prompt: completion == "It is 2" and solution == "2" and len(prompt) == 2,
        lambda solution_str, ground_truth, level: (solution_str, ground_truth, level) == ("It is 2", "2", 3),
        lambda response, **columns: response == "It is 2" and columns == ROW,
        lambda completions, answer, **kwargs: [completions[0][0]["content"] == "It is 2" and answer == ["2"]],
        lambda prompts, completions, level, **kwargs: [level == [3] and prompts[0][0]["role"] == "system"],
        lambda action, observation: action.message == "It is 2" and observation.answer == "2",
    ],
)
def test_the_usual_signatures_of_other_projects_are_understood(function):
    """Functions of one answer, of a batch, and OpenEnv's rubrics."""
    assert score(function) == 1.0


def test_a_column_wins_over_what_another_project_calls_the_answer():
    """`target` is the column of that name where the rows have one."""
    assert score(lambda target: target, row={"target": 0.5, "answer": 1}) == 0.5


def test_a_question_without_a_column_is_the_last_message():
    """It is what the model was asked."""
    assert score(lambda question: question == "How much is 1+1?", row={"answer": "2"}) == 1.0


def test_an_unknown_parameter_is_refused_before_anything_is_scored():
    """The message has the columns that there are."""

    def reward(anser):
        return 1

    with pytest.raises(ConfigurationError, match=r"'reward' asks for 'anser'.*'question', 'answer', 'level'"):
        as_rubric(reward).check(tuple(ROW))


def test_an_answer_that_the_rows_do_not_have_is_told_with_the_cure():
    """Renaming a column makes it one."""
    with pytest.raises(ConfigurationError, match="`columns` renames one"):
        as_rubric(lambda solution: 1).check(("target_number",))


def test_an_async_function_is_awaited():
    """Whether a function is async makes no difference to its score."""

    async def reward(completion, answer):
        return completion.endswith(answer)

    assert score(reward) == 1.0


def test_what_a_function_raises_fails_the_episode():
    """It is no 0: the error names the function."""

    def reward(completion):
        raise KeyError("x")

    with pytest.raises(EnvError, match=r"the reward 'reward' raised KeyError"):
        score(reward)

    def judge(completion):
        raise PolicyError("the judge's server is away")

    with pytest.raises(PolicyError, match="away"):
        score(judge)


@pytest.mark.parametrize("value", ["0.5", [0.5], float("nan"), float("inf"), {}, b"1"])
def test_what_is_no_number_fails_the_episode_and_names_part_and_row(value):
    """Nothing is parsed, averaged or replaced."""
    with pytest.raises(EnvError, match=r"the reward .*row .*1\+1"):
        score(lambda completion: value)


@pytest.mark.parametrize("value", [[1, 2], [], 1])
def test_a_function_of_batches_returns_one_number_for_one_completion(value):
    """A list of another length is never stretched."""
    with pytest.raises(EnvError, match="one completion"):
        score(lambda completions, **kwargs: value)


def test_none_is_not_scored():
    """It stays None."""
    assert score(lambda completion: None) is None
