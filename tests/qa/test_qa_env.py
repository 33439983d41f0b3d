"""Data rows as an environment: what is asked, what is scored, and which rows are whose."""

import math

import pytest

from tiltyard import (
    BatchedRollout,
    ConcurrentRollout,
    ConfigurationError,
    Ending,
    EpisodeOverError,
    Job,
    Limits,
    QADatasetEnv,
    Reply,
    RolloutHarness,
    Task,
    WeightedSum,
    check_env,
    load_rows,
    make_renderer,
    split_rows,
)
from tiltyard.testing.scripted import ScriptedAsyncPolicy
from tiltyard.testing.tokenizer import IM_END, byte_tokenizer
from tiltyard.testing.tokens import ScriptedTokens

ROWS = [{"question": f"{n}+{n}", "answer": str(2 * n)} for n in range(10)]


def right(completion, answer):
    return completion == answer


def test_a_row_is_asked_once_and_its_answer_scored():
    """The episode is over with the first answer; the parts of the score are in its info."""
    env = QADatasetEnv(ROWS, WeightedSum({"right": right, "short": lambda completion: 0.5}))
    turn = env.start(Task(row_index=3))
    assert turn.messages == ({"role": "user", "content": "3+3"},)
    assert turn.info == {"row_index": 3, "evaluation": False}
    turn = env.reply(Reply("6"))
    assert (turn.reward, turn.done, turn.truncated) == (1.5, True, False)
    assert turn.info == {"reward_parts": {"right": 1.0, "short": 0.5}}


def test_it_is_a_sound_environment():
    """The conformance kit finds nothing wrong with it."""
    assert check_env(lambda: QADatasetEnv(ROWS, right)).ok


def test_the_same_seed_asks_the_same_row():
    """Where no row is named, the seed chooses one; a row that is named needs no seed."""
    first, second = QADatasetEnv(ROWS, right), QADatasetEnv(ROWS, right)
    seen = [first.reset(seed)[0] for seed in range(30)]
    assert seen == [second.reset(seed)[0] for seed in range(30)]
    assert len(set(seen)) > 5
    assert first.reset(1, row_index=4) == second.reset(2, row_index=4)


def test_training_and_evaluation_have_rows_and_sizes_of_their_own():
    """No held-out row is ever asked in training, and the sizes are those of each part."""
    parts = split_rows(load_rows(ROWS), 0.7)
    env = QADatasetEnv(parts.train, right, held_out=parts.held_out)
    assert (env.dataset_size, env.evaluation_size) == (7, 3)
    train = {env.reset(row_index=index)[0] for index in range(7)}
    held_out = {env.reset(row_index=index, evaluation=True)[0] for index in range(3)}
    assert train | held_out == {row["question"] for row in ROWS}
    with pytest.raises(ConfigurationError, match="no held-out row 3: there are 3"):
        env.reset(row_index=3, evaluation=True)
    with pytest.raises(ConfigurationError, match="no training row -1"):
        env.reset(row_index=-1)


def test_evaluation_without_held_out_rows_is_refused():
    """It does not fall back on the rows that were trained on."""
    with pytest.raises(ConfigurationError, match="no held-out rows"):
        QADatasetEnv(ROWS, right).reset(row_index=0, evaluation=True)


@pytest.mark.parametrize("nothing", [None, []])
def test_nothing_held_out_is_nothing_to_evaluate(nothing):
    """A list without rows is none, as an empty part of a split is."""
    assert QADatasetEnv(ROWS, right, held_out=nothing).evaluation_size is None


@pytest.mark.parametrize("row", [-1, len(ROWS), "0", True, 1.0])
def test_a_row_that_is_not_there_is_refused(row):
    """Rows are counted from 0 with whole numbers; -1 is not the last one."""
    with pytest.raises(ConfigurationError, match=f"there is no training row {row!r}: there are"):
        QADatasetEnv(ROWS, right).reset(row_index=row)


def test_a_step_after_the_end_is_refused():
    """As of any environment."""
    env = QADatasetEnv(ROWS, right)
    env.reset(row_index=0)
    env.step("0")
    with pytest.raises(EpisodeOverError):
        env.step("0")


def test_it_can_be_driven_as_text():
    """`reset` and `step`, as any text environment; the messages of the prompt are in the info."""
    env = QADatasetEnv(ROWS, right, prompt_template={"system_0": "Add.", "user_1": "{question}?"}, max_reward=1)
    text, info = env.reset(row_index=2)
    assert text == "Add.\n\n2+2?"
    assert info["messages"] == [{"role": "system", "content": "Add."}, {"role": "user", "content": "2+2?"}]
    assert env.step("4") == ("", 1.0, True, False, {"reward_parts": {"right": 1.0}, "success": True})


def test_more_than_one_answer_can_be_given():
    """Until one earns `max_reward` or the turns are used up; only the last answer counts."""
    env = QADatasetEnv(ROWS, right, max_turns=3, max_reward=1.0)
    env.start(Task(row_index=3))
    first = env.reply(Reply("5"))
    assert (first.reward, first.done, first.info["success"]) == (0.0, False, False)
    assert first.messages[0]["content"] == "That is not right. Try again."
    second = env.reply(Reply("6"))
    assert (second.reward, second.done, second.info["success"]) == (1.0, True, True)
    env.start(Task(row_index=3))
    assert [env.reply(Reply(text)).done for text in ("1", "2", "3")] == [False, False, True]


def test_the_rubric_sees_the_earlier_answers():
    """`messages` is the whole conversation."""
    env = QADatasetEnv(ROWS, lambda messages: len(messages) / 10, max_turns=2, max_reward=1.0)
    env.start(Task(row_index=0))
    env.reply(Reply("no"))
    assert env.reply(Reply("yes")).reward == 0.4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_turns": 0}, "max_turns must be a whole number >= 1, got 0"),
        ({"max_turns": "2"}, "max_turns must be a whole number >= 1, got '2'"),
        ({"max_reward": math.nan}, "max_reward must be a finite number or None, got nan"),
        ({"max_reward": "1"}, "max_reward must be a finite number or None, got '1'"),
        ({"max_turns": 2}, "needs max_reward"),
        ({"prompt_template": {"user_0": "{q}"}}, r"\{q\}, which the rows does not have"),
        ({"rubric": lambda nums: 1}, "asks for 'nums'"),
        ({"rubric": 3}, "is a function or a rubric"),
        ({"held_out": [{"question": "x"}]}, "asks for 'answer'"),
    ],
)
def test_what_does_not_go_together_is_refused_before_the_first_episode(options, message):
    """A missing column is an error of the set-up and not of each episode."""
    with pytest.raises(ConfigurationError, match=message):
        QADatasetEnv(ROWS, options.pop("rubric", right), **options)


def test_the_thinking_is_part_of_what_is_scored():
    """A rubric that looks for it finds it, whether the tokens have it or a server gave it apart."""
    env = QADatasetEnv(ROWS, lambda completion: completion == "<think>\na\n</think>\n\nb")
    env.start(Task(row_index=0))
    assert env.reply(Reply("b", reasoning="a")).reward == 1.0
    harness = RolloutHarness.local(QADatasetEnv(ROWS, lambda completion: completion == "<think>a</think>b"), TOKENIZER)
    harness.reset(row_index=0)
    assert harness.step([*b"<think>a</think>b", END])[1] == 1.0


# Answers that the prompt begins

TOKENIZER = byte_tokenizer()
END = TOKENIZER.convert_tokens_to_ids(IM_END)
BEGUN = {"user_0": "{question}?", "assistant_1": "It is "}


def whole(completion, answer):
    return completion == f"It is {answer}"


def text_of(ids):
    return make_renderer(TOKENIZER).encoder.decode(ids)


def test_an_answer_that_the_prompt_begins_is_continued():
    """Its beginning follows the generation prompt, nothing closes it, and none of its tokens is trained on."""
    harness = RolloutHarness.from_dataset(ROWS, whole, TOKENIZER, prompt_template=BEGUN)
    prompt = harness.reset(row_index=3)
    assert text_of(prompt).endswith("<|im_start|>user\n3+3?<|im_end|>\n<|im_start|>assistant\nIt is ")
    _, reward, done, _, _ = harness.step([*b"6", END], [-0.5, -0.1])
    assert (reward, done) == (1.0, True)
    trajectory = harness.get_episode_data()
    assert trajectory.messages == ({"role": "user", "content": "3+3?"}, {"role": "assistant", "content": "It is 6"})
    transcript = trajectory.transcript
    assert transcript.ids == [*prompt, *b"6", END]
    assert transcript.mask == [False] * len(prompt) + [True, True]


def test_the_next_turn_follows_a_begun_answer_as_any_other():
    """What follows is the bridge after the whole answer; a full render has the same ids."""
    options = {"max_turns": 2, "max_reward": 1, "prompt_template": BEGUN}
    harness = RolloutHarness.from_dataset(ROWS, whole, TOKENIZER, **options)
    harness.reset(row_index=3)
    prompt, _, done, _, _ = harness.step([*b"5", END])
    assert not done
    said = [{"role": "user", "content": "3+3?"}, {"role": "assistant", "content": "It is 5"}]
    retry = {"role": "user", "content": "That is not right. Try again."}
    assert prompt == make_renderer(TOKENIZER).opening([*said, retry])


def test_special_tokens_in_a_begun_answer_stay_text():
    """A row cannot end the turn that it begins."""
    rows = [{"question": "x", "hint": "a<|im_end|>b"}] * 2
    template = {"user_0": "{question}", "assistant_1": "{hint}"}
    harness = RolloutHarness.from_dataset(rows, lambda completion: 1, TOKENIZER, prompt_template=template)
    assert harness.reset(row_index=0).count(END) == 1  # that of the user


def test_every_driver_continues_a_begun_answer_alike():
    """A local model and a server give the same conversation and reward for the same words."""
    env = QADatasetEnv(ROWS, whole, prompt_template=BEGUN)
    served = ConcurrentRollout(ScriptedAsyncPolicy(lambda prompt, turn: "6"), Limits(max_turns=1))
    tokens = ScriptedTokens(TOKENIZER, ["6"])
    local = BatchedRollout(tokens, make_renderer(TOKENIZER), Limits(max_turns=1))
    other = served.run([Job(env, Task(row_index=3), "a")])[0]
    mine = local.run([Job(QADatasetEnv(ROWS, whole, prompt_template=BEGUN), Task(row_index=3), "a")])[0]
    assert (mine.messages, mine.reward, mine.ending) == (other.messages, other.reward, other.ending)
    assert mine.ending is Ending.DONE
    assert mine.reward == 1.0


# The harness


def test_a_harness_over_rows_says_the_size_of_the_part_that_it_serves():
    """In `eval_mode` that of the held-out rows: an index is never out of range."""
    harness = RolloutHarness.from_dataset(ROWS, right, TOKENIZER, train_test_split=0.8)
    assert harness.dataset_size == 8
    with harness.eval_mode():
        assert harness.dataset_size == 2
        held_out = [text_of(harness.reset(row_index=index)) for index in range(harness.dataset_size)]
    assert harness.dataset_size == 8
    train = [text_of(harness.reset(row_index=index)) for index in range(8)]
    assert not set(train) & set(held_out)


def test_a_harness_over_rows_takes_a_file_and_the_template_arguments(tmp_path):
    """Whatever `load_rows` takes; `chat_template_kwargs` reach each render."""
    (tmp_path / "rows.jsonl").write_text('{"question": "a", "answer": "b"}\n' * 2)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% if shout %}{{ '!!!' }}{% endif %}" + tokenizer.chat_template
    options = {"chat_template_kwargs": {"shout": True}, "max_reward": 1}
    harness = RolloutHarness.from_dataset(str(tmp_path / "rows.jsonl"), right, tokenizer, **options)
    assert text_of(harness.reset(row_index=0)).startswith("!!!")


def test_two_ways_to_hold_rows_out_are_one_too_many():
    """`held_out` or `train_test_split`."""
    with pytest.raises(ConfigurationError, match="give one"):
        RolloutHarness.from_dataset(ROWS, right, TOKENIZER, held_out=ROWS, train_test_split=0.5)


@pytest.mark.parametrize("value", [None, "raise", float("nan"), "1"])
def test_an_answer_that_cannot_be_scored_fails_its_episode(value):
    """It never counts as 0."""

    def reward(completion):
        if value == "raise":
            raise RuntimeError("no")
        return value

    policy = ScriptedAsyncPolicy(lambda prompt, turn: "6")
    job = Job(QADatasetEnv(ROWS, reward), Task(row_index=0), "a")
    trajectory = ConcurrentRollout(policy, Limits(max_turns=1)).run([job])[0]
    assert trajectory.failed
    assert trajectory.reward is None
    assert trajectory.ending is (Ending.UNSCORED if value is None else Ending.ENV_ERROR)
