"""What a server's refusal means, by its status and its words."""

import json

import pytest

from tiltyard.errors import PolicyError, PromptTooLongError
from tiltyard.policies.server_errors import error_inside, is_retried, server_error

URL = "http://host/v1/chat/completions"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"message": "too big", "code": "context_length_exceeded"}}),
        (400, {"object": "error", "message": "This model's maximum context length is 8192 tokens. However, you ..."}),
        (400, {"error": {"message": "max_tokens must be at least 1, got -5: exceeds max_model_len"}}),
        (400, {"error": {"message": "the request exceeds the available context size", "type": "x"}}),
        (500, {"error": {"message": "the request exceeds the available context size, try increasing it"}}),
        (400, {"error": {"message": "no", "type": "exceed_context_size_error", "n_ctx": 512}}),
        (413, {"error": {"message": "Prompt is too long: 9000 tokens > 8192"}}),
        (422, {"detail": "Input length exceeds the context window"}),
    ],
)
def test_a_prompt_that_does_not_fit_truncates_the_episode(status, body):
    """Every server words it differently; none of them is a failure of the episode."""
    assert type(server_error(status, json.dumps(body), URL)) is PromptTooLongError


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (400, '{"error": {"message": "bad tool schema", "type": "invalid_request_error"}}', "bad tool schema"),
        (401, '{"error": {"message": "Incorrect API key"}}', "OPENAI_API_KEY"),
        (404, '{"detail": "Not Found"}', "base_url ends where /chat/completions begins"),
        (404, "<html>no such page</html>", "no such page"),
        (422, '{"detail": [{"loc": ["body", "messages"], "msg": "field required"}]}', "field required"),
        (500, '{"error": "out of memory"}', "out of memory"),
        (503, "", "no message"),
        (301, "", "a redirect is not followed"),
        (400, "[1, 2]", "1, 2"),
    ],
)
def test_any_other_refusal_has_the_servers_words_and_what_to_do(status, body, says):
    """The message says where, which status, what the server said, and the cure where there is one."""
    error = server_error(status, body, URL)
    assert type(error) is PolicyError
    assert says in str(error)
    assert f"{URL} answered {status}" in str(error)


def test_long_words_of_a_server_are_cut():
    """An error page is not copied into every report."""
    assert len(str(server_error(500, "x" * 100_000, URL))) < 1000


@pytest.mark.parametrize(
    ("status", "again"),
    [(408, True), (409, True), (429, True), (500, True), (503, True), (400, False), (401, False), (404, False)],
)
def test_which_statuses_are_worth_another_attempt(status, again):
    """408, 409, 429 and from 500 on."""
    assert is_retried(status) == again


@pytest.mark.parametrize(
    ("data", "inside"),
    [
        ({"error": {"message": "slow down", "code": 429}}, (429, "slow down")),
        ({"error": {"message": "gone", "code": "upstream"}}, (502, "gone (upstream)")),
        ({"error": "gone", "choices": []}, (502, "gone")),
        ({"choices": [{}], "error": {"message": "ignored"}}, None),
        ({"choices": []}, None),
        ([], None),
    ],
)
def test_an_error_that_came_with_status_200_is_an_error(data, inside):
    """Gateways answer 200 before they know."""
    assert error_inside(data) == inside
