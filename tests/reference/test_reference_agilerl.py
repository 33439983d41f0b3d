"""AgileRL, "Environments (OpenEnv)": the samples, with only imports, URLs and the names of models and data changed.

The blocks of manifests load, are probed and play; `README.md` lists which sample is which test.
"""

import inspect
import json

import pytest

from tiltyard import RemoteEnvClient, RolloutHarness, TextEnv, check_env, resolve_env
from tiltyard.build import turns_factory
from tiltyard.build_dataset import dataset_env
from tiltyard.manifest import load_manifest
from tiltyard.manifest.probing import env_factory, probe
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.types import Reply, Task

GUESS_ENV = '''
class GuessEnv:
    """Guess-the-number: the model proposes a number; the env scores it."""

    def __init__(self, target: int = 7, max_turns: int = 3) -> None:
        self.target, self.max_turns, self._turn = target, max_turns, 0

    def reset(self, seed: int | None = None) -> tuple[str, dict]:
        self._turn = 0
        return "Guess a number between 1 and 10.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        self._turn += 1
        guess = int("".join(c for c in action if c.isdigit()) or 0)
        correct = guess == self.target
        done = correct or self._turn >= self.max_turns
        feedback = "Correct!" if correct else ("Too high." if guess > self.target else "Too low.")
        return feedback, float(correct), done, False, {}
'''

COUNTDOWN = """
environment:
    env_type: rollout
    dataset: countdown.jsonl
    columns:
        nums: question
        target: answer
    rubric_file_path: reward.py
    rubric_name: RUBRIC
    prompt_template:
        system_0: You are a helpful assistant.
        user_1: Using each number in {question}, make an equation that equals {answer}.
    max_reward: 2.0
    train_test_split: 0.8
"""

REWARD = """
from tiltyard import WeightedSum


def equation(completion):
    return "=" in completion


def right(completion, answer):
    return completion.strip().endswith(f"= {answer}")


RUBRIC = WeightedSum({"equation": equation, "right": right})
"""

GEM = """
environment:
    env_type: rollout
    entrypoint: gem:make
    env_config:
        env_id: game:GuessTheNumber-v0-easy
    max_turns: 50
    max_reward: 1.0
"""

GUESS = """
environment:
    env_type: rollout
    entrypoint: guess_env.py:GuessEnv
    env_config:
        target: 7
    max_turns: 3
"""

SERVER = """
environment:
    env_type: rollout
    env_url: {url}
    max_turns: 1
    request_timeout_s: 600
"""

SUPERVISED = """
environment:
    env_type: dataset
    objective: sft
    dataset: human_like.jsonl
    response_column: chosen
    train_test_split: 0.9
"""

PACKAGES = """
environment:
    env_type: rollout
    entrypoint: gem:make
    env_config:
        env_id: game:GuessTheNumber-v0-easy
    env_packages:
        uv: [gem-llm==1.0.0]
    max_turns: 50
"""

BOARD = """
environment:
    env_type: rollout
    env_url: {url}
    max_turns: 12
    observation_processor: render_board.py:render
"""

RENDER_BOARD = """
def render(payload: dict) -> str:
    return "Board state: " + ", ".join(str(v) for v in payload["info_state"])
"""


@pytest.fixture
def guess_env(tmp_path):
    """The sample's class, from a file next to the run."""
    (tmp_path / "guess_env.py").write_text(GUESS_ENV)
    namespace = {}
    exec(GUESS_ENV, namespace)
    return namespace["GuessEnv"]


@pytest.fixture
def manifest(tmp_path, model_folder):
    """Load a sample's `environment` block, with the other sections that a whole run needs."""

    def load(environment, rest="algorithm: {group_size: 2}"):
        path = tmp_path / "m.yaml"
        path.write_text(f"{environment}\nmodel: {{name: {model_folder}}}\n{rest}\n")
        return load_manifest(path)

    return load


def probed(manifest):
    return probe(manifest.environment, env_factory(manifest.environment))


def opening(manifest, task):
    """The messages of an episode that this manifest opens."""
    env = turns_factory(manifest)()
    messages = env.start(task).messages
    env.close()
    return messages


def ids(tokenizer, text):
    return tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)


def test_the_text_interface(guess_env):
    """ "The text interface": two methods with these parameters are all that is asked for."""
    for name in ("reset", "step"):
        wanted = list(inspect.signature(getattr(TextEnv, name)).parameters)
        assert list(inspect.signature(getattr(guess_env, name)).parameters) == wanted
    report = check_env(guess_env)
    assert report.ok, str(report)


def test_writing_one_in_python(guess_env):
    """ "Writing one in Python": driven in this process, ended by the environment before `max_turns`."""
    GuessEnv, tokenizer = guess_env, byte_tokenizer()
    env = RolloutHarness.local(GuessEnv(), tokenizer, max_turns=3)
    assert "Guess a number between 1 and 10." in tokenizer.decode(env.reset(seed=0))
    shown, reward, terminated, truncated, _ = env.step(ids(tokenizer, "3"))
    assert ("Too low." in tokenizer.decode(shown), reward, terminated, truncated) == (True, 0.0, False, False)
    _, reward, terminated, truncated, _ = env.step(ids(tokenizer, "I say 7"))
    assert (reward, terminated, truncated) == (1.0, True, False)
    env.close()


def test_writing_one_in_python_for_a_batch(guess_env):
    """ "Writing one in Python", `env_factory`: each slot gets an instance of its own."""
    GuessEnv, tokenizer = guess_env, byte_tokenizer()
    env_factory = lambda: RolloutHarness.local(GuessEnv(), tokenizer, max_turns=3)  # noqa: E731  # as the sample has it
    slots = [env_factory() for _ in range(2)]
    for slot in slots:
        slot.reset(seed=0)
    assert slots[0].step(ids(tokenizer, "7"))[2]
    assert not slots[1].step(ids(tokenizer, "3"))[2]
    for slot in slots:
        slot.close()


def test_dataset_rows_plus_a_reward_file(manifest, tmp_path):
    """ "Dataset rows plus a reward file": the model answers each row once, and the file scores it."""
    rows = [{"nums": [1, n], "target": 1 + n} for n in range(10)]
    (tmp_path / "countdown.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "reward.py").write_text(REWARD)
    loaded = manifest(COUNTDOWN)
    facts = probed(loaded)
    assert (facts.max_turns, facts.rows, facts.held_out_rows) == (1, 8, 2)
    env = turns_factory(loaded)()
    turn = env.start(Task(row_index=0, seed=0))
    system, user = turn.messages
    assert system["content"] == "You are a helpful assistant."
    assert user["content"].startswith("Using each number in [1, ")
    answer = user["content"].rstrip(".").rpartition(" ")[2]
    end = env.reply(Reply(f"1 + x = {answer}"))
    assert (end.reward, end.done, end.info["reward_parts"]) == (2.0, True, {"equation": 1.0, "right": 1.0})


def test_the_aliases_of_the_rows(manifest, tmp_path):
    """ "Dataset rows plus a reward file": `reward_file_path`, and in the table `name` and `reward_fn_name`."""
    (tmp_path / "countdown.jsonl").write_text('{"nums": [1, 2], "target": 3}\n' * 4)
    (tmp_path / "reward.py").write_text(REWARD)
    others = {"rubric_file_path": "reward_file_path", "rubric_name": "reward_fn_name", "dataset:": "name:"}
    text = COUNTDOWN
    for ours, alias in others.items():
        text = text.replace(ours, alias)
    assert manifest(text).environment == manifest(COUNTDOWN).environment


def test_a_python_entrypoint_of_a_library(manifest):
    """ "A Python entrypoint": a library's factory works unchanged."""
    pytest.importorskip("gem")
    loaded = manifest(GEM)
    assert probed(loaded).max_turns == 50
    (first,) = opening(loaded, Task(seed=0))
    assert first["role"] == "user"


def test_a_python_entrypoint_next_to_the_run(guess_env, manifest, train, tmp_path):
    """ "A Python entrypoint", the same GuessEnv as a file: a whole run of one step."""
    rest = (
        "algorithm: {group_size: 2}\nrollout: {max_tokens_per_turn: 8, length_reward: 0.0}\n"
        "training: {steps: 1, batch_size: 1, eval: {tasks: 2}}"
    )
    loaded = manifest(GUESS, rest)
    assert probed(loaded).max_turns == 3
    summary = train(tmp_path / "m.yaml", tmp_path / "run")
    assert (summary["steps_done"], summary["failed"], summary["leaked"]) == (1, 0, 0)


def test_max_turns_may_be_left_out(guess_env, manifest):
    """ "A Python entrypoint": it is probed off one throwaway environment."""
    assert probed(manifest(GUESS.replace("    max_turns: 3\n", ""))).max_turns == 3


def test_a_system_prompt_in_env_config(manifest):
    """ "A Python entrypoint", `system_prompt`: the leading system message, and no argument of the factory."""
    pytest.importorskip("gem")
    prompt = "        system_prompt: You are playing a guessing game. Reply with one number.\n"
    loaded = manifest(GEM.replace("    max_turns", f"{prompt}    max_turns"))
    system, _ = opening(loaded, Task(seed=0))
    assert system == {"role": "system", "content": "You are playing a guessing game. Reply with one number."}


def test_an_already_running_server(manifest):
    """ "An already-running server": `resolve_env` starts it, the manifest points at it; a game without a download."""
    pytest.importorskip("gem")
    url, server = resolve_env(
        "gem:make",
        env_config={"env_id": "game:GuessTheNumber-v0-easy"},
        port=0,
        max_concurrent_envs=16,
    )
    loaded = manifest(SERVER.format(url=url))
    assert (probed(loaded).max_turns, loaded.environment.request_timeout_s) == (1, 600)
    assert opening(loaded, Task(seed=0))[0]["content"]
    report = server.stop()
    assert report.leaked == 0


def test_a_server_needs_max_turns(manifest):
    """ "An already-running server": a remote environment cannot be probed, so `max_turns` is required."""
    with pytest.raises(ValueError, match="max_turns"):
        manifest(SERVER.format(url="http://127.0.0.1:8000").replace("    max_turns: 1\n", ""))


@pytest.mark.parametrize("objective", ["sft", "preference"])
def test_supervised(objective, manifest, train, tmp_path):
    """ "Supervised (SFT / DPO)": `objective` picks the columns and the loss; a whole run of two steps."""
    rows = [{"prompt": f"Say {n}.", "chosen": f"It is {n}.", "rejected": "No."} for n in range(20)]
    (tmp_path / "human_like.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = SUPERVISED
    if objective == "preference":
        text = text.replace("objective: sft", "objective: preference").replace("    response_column: chosen\n", "")
    loaded = manifest(text, "training: {steps: 2, batch_size: 4, learning_rate: 1e-3}")
    counts = dataset_env(loaded, byte_tokenizer()).counts
    assert (counts["train"].used, counts["held_out"].used) == (18, 2)
    assert train(tmp_path / "m.yaml", tmp_path / "run")["steps_done"] == 2


def test_declaring_what_the_environment_needs(manifest):
    """ "Declaring what the environment needs": names for uv; what begins with `-` is refused."""
    assert manifest(PACKAGES).environment.env_packages == {"uv": ["gem-llm==1.0.0"]}
    with pytest.raises(ValueError, match="env_packages"):
        manifest(PACKAGES.replace("gem-llm==1.0.0", '"--index-url=https://example.invalid"'))


ROWS_ENV = '''
class Rows:
    """As the sample declares it: a row by its number, of the training rows or of the held-out ones."""

    dataset_size = 4

    def reset(self, seed=None, *, row_index: int | None = None,
              evaluation: bool | None = None) -> tuple[str, dict]:
        return f"{'held out' if evaluation else 'row'} {row_index}", {}

    def step(self, action: str):
        return "", float("a" in action), True, False, {}
'''


def test_evaluation_and_grouped_rollouts(manifest, train, tmp_path):
    """ "Evaluation and grouped rollouts": a group shares one row; evaluation asks the held-out split."""
    (tmp_path / "rows_env.py").write_text(ROWS_ENV)
    text = "environment: {env_type: rollout, entrypoint: 'rows_env.py:Rows', max_turns: 1}"
    rest = (
        "algorithm: {group_size: 3}\nrollout: {max_tokens_per_turn: 8, length_reward: 0.0}\n"
        "training: {steps: 1, batch_size: 2, eval: {tasks: 2}}"
    )
    manifest(text, rest)
    train(tmp_path / "m.yaml", tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()]
    openings = {}
    for line in lines:
        openings.setdefault((line["phase"], line["group"]), []).append(line["messages"][0]["content"])
    trained = [texts for (phase, _), texts in openings.items() if phase == "train"]
    assert [len(texts) for texts in trained] == [3, 3]
    assert all(len(set(texts)) == 1 and texts[0].startswith("row") for texts in trained)
    held_out = [texts for (phase, _), texts in openings.items() if phase != "train"]
    assert all(texts[0].startswith("held out") for texts in held_out)
    assert held_out


def test_observations_that_are_not_plain_text(manifest, tmp_path):
    """ "Observations that are not plain text": a file's function makes the text of a payload with numbers."""
    (tmp_path / "render_board.py").write_text(RENDER_BOARD)
    (tmp_path / "board.py").write_text(
        "class Board:\n"
        "    def reset(self, seed=None):\n        return {'info_state': [1.0, 0.0, seed]}, {}\n"
        "    def step(self, action):\n        return {'info_state': [0.0]}, 1.0, True, False, {}\n"
    )
    url, server = resolve_env(f"{tmp_path}/board.py:Board", max_concurrent_envs=2)
    loaded = manifest(BOARD.format(url=url))
    assert [message["content"] for message in opening(loaded, Task(seed=5))] == ["Board state: 1.0, 0.0, 5"]
    assert server.stop().leaked == 0


def test_lower_level_pieces(guess_env, tmp_path):
    """ "Lower-level pieces": a server from an entrypoint, one session on it, both ended."""
    url, server = resolve_env(
        f"{tmp_path}/guess_env.py:GuessEnv",
        env_config={"target": 7},
        max_concurrent_envs=8,
    )
    client = RemoteEnvClient(url)
    payload, _ = client.reset()
    assert "Guess a number between 1 and 10." in str(payload)
    payload, reward, terminated, truncated, _info = client.step("5")
    assert ("Too low." in str(payload), reward, terminated, truncated) == (True, 0.0, False, False)
    client.close()
    server.stop()
