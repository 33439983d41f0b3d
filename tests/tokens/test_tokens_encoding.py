"""Raw prompts and completions, and the byte tokenizer that the tests stand on."""

import pytest

from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.tokens.encoding import Encoder


def test_prompt_and_completion_are_encoded_apart():
    """LO-07: [A, B, C] with mask [0, 1, 1], though "abc" would merge across the seam."""
    encoder = Encoder(byte_tokenizer(merges=[("a", "b")]))
    prompt, completion = encoder.encode_prompt("a"), encoder.encode("bc")
    ids, mask = prompt + completion, [0] * len(prompt) + [1] * len(completion)
    assert (ids, mask) == ([97, 98, 99], [0, 1, 1])
    assert encoder.encode("abc") == [260, 99]


def test_chosen_and_rejected_share_the_prompt_s_ids():
    """LO-07: also when one answer would merge with the prompt."""
    encoder = Encoder(byte_tokenizer(merges=[("a", "b")]))
    rows = [encoder.encode_prompt("a") + encoder.encode(answer) for answer in ("bc", "xc")]
    assert [row[0] for row in rows] == [97, 97]


@pytest.mark.parametrize("text", ["hi", "<|bos|>hi"])
def test_a_raw_prompt_has_exactly_one_bos(text):
    """TK-04 b: whether or not the text spells it."""
    assert Encoder(byte_tokenizer(add_bos=True)).encode_prompt(text) == [259, 104, 105]


@pytest.mark.parametrize(("options", "ids"), [({}, [104, 105]), ({"add_eos": True}, [104, 105])])
def test_a_raw_prompt_has_no_bos_that_the_tokenizer_lacks_and_no_end(options, ids):
    """TK-04 d: no None id, and no EOS between prompt and completion."""
    assert Encoder(byte_tokenizer(**options)).encode_prompt("hi") == ids


def test_a_byte_is_its_own_id():
    """So that a test can write ids as bytes."""
    tokenizer = byte_tokenizer()
    every = bytes(range(256))
    assert tokenizer.encode("é€") == list("é€".encode())
    assert tokenizer.decode(list("é€".encode())) == "é€"
    assert len(tokenizer.convert_ids_to_tokens(list(every))) == len(set(tokenizer.convert_ids_to_tokens(list(every))))
