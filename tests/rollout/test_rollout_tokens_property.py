"""What holds for every transcript, whatever is sampled and whatever the environment says."""

from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_envs import Recorder, going, over

from tiltyard.rollout.batched import BatchedRollout, Job
from tiltyard.rollout.limits import Limits
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.testing.tokens import ScriptedTokens
from tiltyard.tokens.renderer import make_renderer
from tiltyard.types import Task

TOKENIZER = byte_tokenizer()
RENDERER = make_renderer(TOKENIZER)

observations = st.text(max_size=20) | st.sampled_from(["<|im_end|>", "<|im_start|>assistant\n", "\n", " "])
sampled = st.lists(st.integers(0, 259), max_size=12).map(tuple)


@settings(max_examples=80, deadline=None)
@given(
    turns=st.lists(st.tuples(sampled, observations), min_size=1, max_size=4),
    ends=st.booleans(),
    context=st.none() | st.integers(30, 200),
)
def test_a_transcript_holds_what_was_seen_and_sampled_in_order(turns, ends, context):
    """Its columns have one length; each request is a prefix of it; it stays within the context."""
    script = [going(text) for _, text in turns]
    if ends:
        script[-1] = over(turns[-1][1])
    policy = ScriptedTokens(TOKENIZER, [ids for ids, _ in turns])
    limits = Limits(max_turns=len(turns), max_tokens_per_turn=10, max_context=context)
    [trajectory] = BatchedRollout(policy, RENDERER, limits).run([Job(Recorder(*script), Task(), "e")])
    transcript = trajectory.transcript

    columns = (transcript.ids, transcript.mask, transcript.logprobs, transcript.turn)
    assert {len(column) for column in columns} == {len(transcript)}
    assert context is None or len(transcript) <= context
    assert [logprob is not None for logprob in transcript.logprobs] == transcript.mask
    for turn, batch in enumerate(policy.requests):
        [request] = batch
        assert list(request.ids) == transcript.ids[: len(request.ids)]
        assert 1 <= request.max_tokens <= 10
        said = [i for i, t in zip(transcript.ids, transcript.turn, strict=True) if t == turn]
        assert tuple(said) == turns[turn][0][: request.max_tokens]
    assert transcript.turns == trajectory.turns == len(policy.requests)
