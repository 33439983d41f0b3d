"""The real model behind a real server, started once for all tests that only ask it."""

import pytest


@pytest.fixture(scope="session")
def model_server():
    """SmolLM2-135M-Instruct behind llama.cpp's server, with one thread."""
    pytest.importorskip("xllamacpp", reason="the server of these tests is not installed")
    from server import ModelServer  # noqa: PLC0415 - without it there is nothing to start

    with ModelServer() as started:
        yield started


@pytest.fixture
def own_server():
    """A server of one test, to be killed."""
    pytest.importorskip("xllamacpp", reason="the server of these tests is not installed")
    from server import ModelServer  # noqa: PLC0415 - as above

    with ModelServer() as started:
        yield started
