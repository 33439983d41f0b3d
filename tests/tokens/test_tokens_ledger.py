"""The ledger of a run's tokens."""

import json

import pytest

from tiltyard.errors import TranscriptError
from tiltyard.tokens.ledger import MAX_DIFFERENCE_NATS, MEAN_DIFFERENCE_NATS, Ledger
from tiltyard.tokens.transcript import Transcript


def transcript(logprobs=(-1.0, -2.0)):
    made = Transcript()
    made.observe([1, 2, 3])
    made.sample([4, 5], logprobs)
    made.observe([6])
    return made


def clean():
    ledger = Ledger()
    ledger.observe(transcript())
    ledger.prompted([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6])
    ledger.compare([-1.0, -2.0], [-1.0, -2.00002])
    return ledger


def test_a_transcript_is_counted():
    """Turns, tokens and sampled tokens."""
    ledger = clean()
    assert (ledger.episodes, ledger.turns, ledger.tokens, ledger.sampled) == (1, 1, 6, 2)


def test_a_clean_run_says_so_with_its_figures():
    """One sentence, with counts and the largest difference."""
    assert clean().verdict() == (
        "clean: every later prompt (1) extended what was seen and sampled before, all 2 sampled tokens have their "
        "log-probability, sampler and trainer differ by 1.0e-05 nats on average and 2.0e-05 at most over 2 tokens"
    )
    assert clean().ok


def test_what_was_not_compared_is_not_claimed():
    """An evaluation has no trainer."""
    ledger = Ledger()
    ledger.observe(transcript())
    assert ledger.verdict().endswith("sampler and trainer were not compared")
    assert ledger.difference_mean is None


@pytest.mark.parametrize("prompt", [[1, 2, 3, 9, 5, 6], [1, 2, 3], []])
def test_a_prompt_that_is_no_extension_is_a_fork(prompt):
    """Other ids, or fewer."""
    ledger = clean()
    ledger.prompted([1, 2, 3, 4, 5], prompt)
    assert (ledger.extended, ledger.forks, ledger.ok) == (1, 1, False)
    assert ledger.verdict() == "not clean: 1 of 2 later prompts did not extend what was seen before them"


def test_tokens_without_a_log_probability_are_a_fault():
    """None is not 0."""
    ledger = Ledger()
    ledger.observe(transcript(None))
    assert ledger.verdict() == "not clean: 2 of 2 sampled tokens have no log-probability"


@pytest.mark.parametrize(
    ("sampler", "trainer"),
    [
        ([-1.0], [-1.0 - 1.1 * MAX_DIFFERENCE_NATS]),
        ([-1.0] * 4, [-1.0 - 1.1 * MEAN_DIFFERENCE_NATS] * 4),
        ([-1.0, -1.0], [float("nan"), -1.0]),
        ([-1.0, -1.0], [-1.0, float("-inf")]),
    ],
)
def test_a_sampler_that_is_not_the_trainer_s_model_is_a_fault(sampler, trainer):
    """Above either bound, or not a number at all."""
    ledger = Ledger()
    ledger.compare(sampler, trainer)
    assert not ledger.ok
    assert ledger.verdict().startswith("not clean: sampler and trainer differ by ")


def test_log_probabilities_are_compared_token_by_token():
    """Another number of them is a bug of the caller."""
    with pytest.raises(TranscriptError, match="2 log-probabilities of the sampler, 1 of the trainer"):
        Ledger().compare([-1.0, -2.0], [-1.0])


def test_a_transcript_out_of_line_is_refused():
    """Its counts would be wrong."""
    broken = transcript()
    broken.mask.pop()
    with pytest.raises(TranscriptError, match="one length"):
        Ledger().observe(broken)


def test_ledgers_add_up():
    """Parts of a run make the whole."""
    whole = clean()
    whole += clean()
    assert (whole.episodes, whole.extended, whole.compared) == (2, 2, 4)
    assert whole.difference_mean == pytest.approx(1e-5)


def test_a_ledger_is_json():
    """Also when a difference is infinite."""
    ledger = clean()
    ledger.compare([-1.0], [float("nan")])
    read = json.loads(json.dumps(ledger.as_dict(), allow_nan=False))
    assert (read["episodes"], read["ok"], read["difference_max"]) == (1, False, "inf")
    assert read["verdict"] == ledger.verdict()


def test_an_empty_run_says_that_nothing_was_sampled():
    """Nothing is neither clean nor not."""
    assert Ledger().verdict() == "no tokens were sampled"
