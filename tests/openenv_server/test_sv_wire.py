"""What the server says on the wire, frame by frame."""

import pytest
from openenv_servers import get_json, wait_until


def test_a_text_environment_answers_with_its_observation_reward_and_end(serve, dial):
    """A text env's action and observation are under `message`; reward and done are on the envelope."""
    url, _ = serve("Guess", {"target": 7})
    with dial(url) as wire:
        assert wire.reset()["observation"]["message"].endswith("guess a number from 1 to 9")
        answer = wire.step("7")
    assert (answer["observation"], answer["reward"], answer["done"]) == ({"message": "right"}, 1.0, True)
    assert answer["metadata"]["success"] is True


def test_the_state_tells_what_the_environment_says_about_itself(serve, dial):
    """Rows, turns and reset arguments are known before the first reset."""
    url, _ = serve("Guess")
    with dial(url) as wire:
        said = wire.ask("state")["data"]["tiltyard"]
    assert (said["dataset_size"], said["evaluation_size"], said["max_turns"]) == (6, 2, 3)
    assert said["reset_options"] == ["evaluation", "row_index", "seed"]


def test_row_and_split_reach_the_environment(serve, dial):
    """`row_index` and `evaluation` are arguments of the reset."""
    url, _ = serve("Guess")
    with dial(url) as wire:
        assert wire.reset(row_index=4, evaluation=True)["observation"]["message"].startswith("held-out row 4")


def test_a_cut_episode_is_done_for_everyone_and_truncated_for_us(serve, dial):
    """Clients that know no truncation see an end."""
    url, _ = serve("Guess", {"target": 9})
    with dial(url) as wire:
        wire.reset()
        answers = [wire.step("1") for _ in range(3)]
    assert [answer["done"] for answer in answers] == [False, False, True]
    own = answers[-1]["metadata"]["tiltyard"]
    assert (own["truncated"], own["terminated"]) == (True, False)


def test_reset_arguments_that_nobody_takes_are_refused_by_name(serve, dial):
    """A19: a row that the environment does not read is an error, and the session lives on."""
    url, _ = serve("Told")
    with dial(url) as wire:
        refused = wire.reset(question="why?", row_index=3)
        assert refused["code"] == "VALIDATION_ERROR"
        assert [error["loc"] for error in refused["errors"]] == [["question"], ["row_index"]]
        assert wire.reset()["observation"]["text"] == "go"


def test_a_seed_that_nobody_takes_is_said_to_be_ignored(serve, dial):
    """Every client sends a seed: an environment without one goes on, and the answer says so."""

    class Unseeded:
        def reset(self):
            return "go", {}

        def step(self, action):
            return "", 0.0, True, False, {}

    url, _ = serve(Unseeded)
    with dial(url) as wire:
        assert wire.reset(seed=3)["metadata"]["tiltyard"]["ignored"] == ["seed"]


def test_a_task_row_reaches_an_environment_that_takes_it(serve, dial):
    """Rows are reset arguments by name, or all of them with `**kwargs`."""
    url, _ = serve("Everything")
    with dial(url) as wire:
        assert wire.reset(seed=2, question="why?")["observation"]["message"].startswith("seed 2, row [")


def test_an_image_stays_an_image_on_every_turn(serve, dial):
    """A20: an image comes as the part of a message that models read, never as `str` of it."""
    url, _ = serve("Told")
    with dial(url) as wire:
        wire.reset()
        image = wire.step("image")["observation"]["image"]
        assert image["image_url"]["url"].startswith("data:image/png;base64,")
        assert [part["text"] for part in wire.step("parts")["observation"]["message"]] == ["two", "parts"]


def test_a_lone_surrogate_becomes_a_replacement_character(serve, dial):
    """OB-02: what cannot be encoded does not reach the wire."""
    url, _ = serve("Told")
    with dial(url) as wire:
        wire.reset()
        assert wire.step("surrogate")["observation"]["message"] == "\ufffd tail"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("raise it broke", "Told.step raised ValueError: it broke"),
        ("nan", "reward nan"),
        ("object", "no form in JSON"),
    ],
)
def test_an_environment_that_fails_is_an_execution_error_and_the_session_lives_on(serve, dial, message, told):
    """Failures are typed and told; none of them is a reward."""
    url, _ = serve("Told")
    with dial(url) as wire:
        wire.reset()
        failed = wire.step(message)
        assert failed["code"] == "EXECUTION_ERROR"
        assert told in failed["message"]
        assert "observation" in wire.step("on")


def test_a_reward_of_none_stays_none(serve, dial):
    """Not scored is not 0."""
    url, _ = serve("Told")
    with dial(url) as wire:
        wire.reset()
        assert wire.step("none")["reward"] is None


def test_a_step_before_the_reset_and_after_the_end_is_an_error(serve, dial):
    """No environment is stepped outside of an episode."""
    url, _ = serve("Guess", {"target": 7})
    with dial(url) as wire:
        assert "before the first reset" in wire.step("7")["message"]
        wire.reset()
        wire.step("7")
        assert "after the end" in wire.step("7")["message"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "INVALID_JSON"),
        ("[1]", "UNKNOWN_TYPE"),
        ('{"type":"jump"}', "UNKNOWN_TYPE"),
        ('{"type":"step","data":7}', "VALIDATION_ERROR"),
        ('{"type":"step","data":{"text":"7"}}', "VALIDATION_ERROR"),
        ('{"type":"step","data":{"message":7}}', "VALIDATION_ERROR"),
    ],
)
def test_a_frame_that_is_none_is_refused_with_its_code(serve, dial, text, code):
    """The codes are those of openenv."""
    import json  # noqa: PLC0415 - only here

    url, _ = serve("Guess")
    with dial(url) as wire:
        wire.socket.send(text)
        assert json.loads(wire.socket.recv(timeout=10))["data"]["code"] == code


def test_a_model_that_acts_wrongly_is_told_so_and_earns_nothing(serve, dial):
    """A ToolError is an answer that every client can read, marked for ours."""
    url, _ = serve("Guess")
    with dial(url) as wire:
        wire.reset()
        answer = wire.step("seven")
    assert (answer["observation"]["message"], answer["reward"]) == ("Error: give one number", None)
    assert answer["metadata"]["tiltyard"]["tool_error"] == "give one number"


def test_a_tool_environment_lists_and_runs_its_tools_as_mcp_environments_do(serve, dial):
    """`list_tools` and `call_tool` are actions; a call that fails says why in the observation."""
    url, _ = serve("Sum")
    with dial(url) as wire:
        assert wire.reset(goal=3)["observation"]["message"] == "Reach 3."
        assert wire.ask("step", {"type": "list_tools"})["data"]["observation"]["tools"][0]["name"] == "add"
        call = {"type": "call_tool", "tool_name": "add", "arguments": {"number": "three"}}
        refused = wire.ask("step", call)["data"]
        assert refused["observation"]["error"]["error_type"] == "invalid_args"
        unknown = wire.ask("step", {**call, "tool_name": "subtract"})["data"]
        assert unknown["observation"]["error"]["error_type"] == "tool_not_found"
        answer = wire.ask("step", {**call, "arguments": {"number": 3}})["data"]
    assert (answer["observation"]["result"], answer["reward"], answer["done"]) == ("The sum is 3.", 1.0, True)


def test_an_environment_of_coroutines_is_awaited(serve, dial):
    """`async def reset` and `step` are served as any other."""

    class Async:
        async def reset(self, seed=None):
            return f"seed {seed}", {}

        async def step(self, action):
            return action, 1.0, True, False, {}

    url, _ = serve(Async)
    with dial(url) as wire:
        assert wire.reset(seed=2)["observation"]["message"] == "seed 2"
        assert wire.step("on")["reward"] == 1.0


def test_a_turn_environment_takes_texts_and_calls(serve, dial):
    """Its system prompt comes beside the first observation, as every environment's does."""
    url, _ = serve("Talk")
    with dial(url) as wire:
        opened = wire.reset(seed=4)
        assert opened["observation"]["message"] == "Hello from seed 4."
        assert opened["metadata"]["tiltyard"]["system_prompt"] == "Be kind."
        calls = [{"name": "look", "arguments": {}}]
        assert wire.ask("step", {"message": "", "tool_calls": calls})["data"]["observation"]["message"].endswith(
            "1 calls."
        )
        assert wire.step("hello")["done"] is True


def test_schema_and_health_are_plain_http(serve, dial):
    """What actions look like, and how busy the server is."""
    url, _ = serve("Guess", max_concurrent_envs=2)
    assert get_json(f"{url}/schema")["action"]["required"] == ["message"]
    with dial(url) as wire:
        wire.reset()
        health = get_json(f"{url}/health")
        assert (health["status"], health["active_sessions"], health["max_sessions"]) == ("healthy", 1, 2)
    wait_until(lambda: get_json(f"{url}/health")["active_sessions"] == 0)


def test_five_megabytes_pass(serve, dial):
    """A large observation needs no setting of the server."""
    url, _ = serve("Told")
    with dial(url) as wire:
        wire.reset()
        assert len(wire.step("big 5000000")["observation"]["message"]) == 5_000_000
