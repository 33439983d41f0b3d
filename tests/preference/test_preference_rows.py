"""Pairs in the forms of the field: the prompt beside them or within them, shared by both to the token."""

import pytest

from tiltyard.errors import ConfigurationError
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.train.dataset_env import DatasetEnv
from tiltyard.train.examples import RowSettings

ASKED = [{"role": "user", "content": "q"}]
GOOD, BAD = [{"role": "assistant", "content": "a"}], [{"role": "assistant", "content": "b"}]


def env(*rows, tokenizer=None, **options):
    options = {"objective": "preference", "train_test_split": 1, **options}
    return DatasetEnv(list(rows), tokenizer or byte_tokenizer(), **options)


def shown(made, index=0):
    pair = made.train[index]
    return made.shown(pair.chosen), made.shown(pair.rejected)


def prompt_of(example):
    return example.ids[: example.mask.find(1)]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        {"prompt": ASKED, "chosen": "a", "rejected": "b"},
        {"prompt": ASKED, "chosen": GOOD, "rejected": BAD},
        {"prompt": "q", "chosen": GOOD, "rejected": BAD},
        {"chosen": ASKED + GOOD, "rejected": ASKED + BAD},
        {"prompt": "q", "chosen": ASKED + GOOD, "rejected": ASKED + BAD},
        {"prompt": ASKED, "chosen": ASKED + GOOD, "rejected": ASKED + BAD},
    ],
)
def test_every_form_of_a_pair_is_the_same_pair(row):
    """Explicit or implicit prompt, texts or messages."""
    opening = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    assert shown(env(row)) == (f"{opening}⟦a<|im_end|>⟧", f"{opening}⟦b<|im_end|>⟧")


def test_the_prompt_of_two_conversations_is_what_they_share():
    """Earlier answers in it are not learned."""
    talk = [*ASKED, {"role": "assistant", "content": "before"}, {"role": "user", "content": "r"}]
    chosen, rejected = shown(env({"chosen": talk + GOOD, "rejected": talk + BAD}))
    assert chosen.count("⟦") == 1
    assert chosen.endswith("⟦a<|im_end|>⟧")
    assert rejected.endswith("⟦b<|im_end|>⟧")


def test_an_answer_may_go_on_over_several_turns():
    """Each of its assistant turns is learned, and what the user said in between is not."""
    more = [*GOOD, {"role": "user", "content": "r"}, {"role": "assistant", "content": "c"}]
    chosen, rejected = shown(env({"prompt": "q", "chosen": more, "rejected": BAD}))
    assert chosen.count("⟦") == 2
    assert rejected.count("⟦") == 1


def test_two_texts_share_their_prompt_to_the_token():
    """What the tokens have in common from the start; no token is cut in two, and no answer changes the prompt's."""
    tokenizer = byte_tokenizer(None, merges=[("a", "b")])
    made = env({"chosen": "Q: a", "rejected": "Q: ab"}, tokenizer=tokenizer)
    pair = made.train[0]
    assert shown(made) == ("Q: ⟦a<|im_end|>⟧", "Q: ⟦ab<|im_end|>⟧")
    assert prompt_of(pair.chosen) == prompt_of(pair.rejected)


def test_chosen_and_rejected_share_the_ids_of_the_prompt_though_one_answer_would_merge_with_it():
    """LO-07: the prompt is encoded apart from both answers."""
    tokenizer = byte_tokenizer(None, merges=[("a", "b")])
    made = env({"prompt": "a", "chosen": "bc", "rejected": "c"}, tokenizer=tokenizer)
    pair = made.train[0]
    assert prompt_of(pair.chosen) == prompt_of(pair.rejected)
    assert [*pair.chosen.ids] == [ord("a"), ord("b"), ord("c"), 258]


def test_two_texts_that_share_nothing_have_no_prompt():
    """They are left out, and counted."""
    made = env({"chosen": "x", "rejected": "y"}, {"chosen": "Q: x", "rejected": "Q: y"})
    assert made.counts["train"].dropped == {"prompts_differ": 1}


def test_equal_answers_teach_nothing_and_are_counted():
    """There is nothing to prefer."""
    made = env({"prompt": "q", "chosen": "a", "rejected": "a"}, {"prompt": "q", "chosen": "a", "rejected": "b"})
    assert made.counts["train"].dropped == {"same_answers": 1}


def test_conversations_that_differ_before_the_answer_are_counted():
    """Two answers to two questions cannot be compared."""
    other = [{"role": "user", "content": "r"}]
    made = env({"chosen": ASKED + GOOD, "rejected": other + BAD}, {"chosen": ASKED + GOOD, "rejected": ASKED + BAD})
    assert made.counts["train"].dropped == {"prompts_differ": 1}


def test_an_empty_answer_leaves_the_pair_out():
    """One of two is no pair."""
    made = env({"prompt": "q", "chosen": "a", "rejected": ""}, {"prompt": "q", "chosen": "a", "rejected": "b"})
    assert made.counts["train"].dropped == {"nothing_to_train": 1}


def test_a_pair_that_is_too_long_is_left_out_whole():
    """One of its two sequences is enough."""
    settings = RowSettings(max_length=60)
    row = {"prompt": "q", "chosen": "a", "rejected": "b" * 50}
    made = env(row, {"prompt": "q", "chosen": "a", "rejected": "b"}, settings=settings)
    assert made.counts["train"].dropped == {"too_long": 1}


def test_a_pair_that_is_cut_keeps_its_prompt():
    """Both lose their ends at most; the mask stays where the answers are."""
    settings = RowSettings(max_length=60, too_long="cut")
    pair = env({"prompt": "q", "chosen": "a" * 50, "rejected": "b"}, settings=settings).train[0]
    assert (len(pair.chosen.ids), pair.chosen.cut, pair.rejected.cut, pair.cut) == (60, True, False, True)
    assert prompt_of(pair.chosen) == prompt_of(pair.rejected)


def test_a_pair_of_which_the_cut_leaves_equal_answers_is_counted():
    """They differed behind the bound."""
    settings = RowSettings(max_length=60, too_long="cut")
    with pytest.raises(ConfigurationError, match="chosen and rejected are the same"):
        env({"prompt": "q", "chosen": "a" * 50 + "x", "rejected": "a" * 50 + "y"}, settings=settings)


def test_answers_without_a_question_are_refused():
    """Messages of the assistant alone say nothing of what was asked."""
    with pytest.raises(
        ConfigurationError, match=r"row train\[0\]: 'chosen' and 'rejected' are answers without a quest"
    ):
        env({"chosen": GOOD, "rejected": BAD})


def test_a_prompt_that_is_not_the_conversations_own_is_refused():
    """Which one is meant cannot be told."""
    with pytest.raises(ConfigurationError, match="do not begin with the 'prompt' 'another'"):
        env({"prompt": "another", "chosen": ASKED + GOOD, "rejected": ASKED + BAD})


def test_missing_columns_are_named_with_those_that_are_there():
    """A preference has two answers."""
    with pytest.raises(
        ConfigurationError, match=r"'chosen' and 'rejected', with or without 'prompt'; .*'prompt', 'good'"
    ):
        env({"prompt": "q", "good": "a"})


def test_an_objective_that_does_not_exist_is_refused():
    """There are two."""
    with pytest.raises(ConfigurationError, match="objective must be 'sft' or 'preference', got 'dpo'"):
        env({"prompt": "q", "chosen": "a", "rejected": "b"}, objective="dpo")
