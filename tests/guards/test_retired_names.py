"""Names of before are gone, and say what stands in their place."""

import re

import pytest

import tiltyard
from tiltyard._retired import RETIRED


@pytest.mark.parametrize("name", RETIRED)
def test_a_retired_name_says_what_is_there_now(name):
    """There is no shim: a name of before is an error that names the one of now."""
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; here it is {re.escape(RETIRED[name])}"):
        getattr(tiltyard, name)
    assert set(re.findall(r"[A-Z]\w+[a-z]\w*|\w+_\w+", RETIRED[name])) & set(dir(tiltyard))


def test_another_name_is_an_error_as_everywhere():
    """Nothing is guessed."""
    with pytest.raises(AttributeError, match=r"module 'tiltyard' has no attribute 'nothing'$"):
        _ = tiltyard.nothing
