"""One environment driven by hand with token ids."""

import sys
import threading

import pytest
from rollout_envs import GuessEnv, Recorder, going, over

from tiltyard.errors import ConfigurationError, EnvError, EnvTimeoutError, EpisodeOverError, TranscriptError
from tiltyard.rollout.batched import BatchedRollout, Job
from tiltyard.rollout.harness import RolloutHarness
from tiltyard.rollout.in_process import InProcessEnvClient
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.testing.tokens import ScriptedTokens
from tiltyard.tokens.renderer import make_renderer
from tiltyard.types import Task, Turn

TOKENIZER = byte_tokenizer()
RENDERER = make_renderer(TOKENIZER)
END = TOKENIZER.eos_token_id


def ids(text):
    return [*TOKENIZER.encode(text, add_special_tokens=False), END]


def local(env, max_turns=3, **options):
    return RolloutHarness.local(env, TOKENIZER, max_turns=max_turns, renderer=RENDERER, **options)


def test_the_sample_of_the_documentation_runs():
    """The GuessEnv of the reference, with only the import changed."""
    tokenizer = TOKENIZER
    env = RolloutHarness.local(GuessEnv(), tokenizer, max_turns=3)
    prompt = env.reset(seed=0)
    assert TOKENIZER.decode(prompt) == (
        "<|im_start|>user\nGuess a number between 1 and 10.<|im_end|>\n<|im_start|>assistant\n"
    )
    prompt, reward, terminated, truncated, info = env.step(ids("9"))
    assert TOKENIZER.decode(prompt).endswith(
        "9<|im_end|>\n<|im_start|>user\nToo high.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (reward, terminated, truncated, info) == (0.0, False, False, {})
    assert env.step(ids("7")) == ([], 1.0, True, False, {})
    env.close()


def test_a_harness_and_the_batched_driver_give_the_same_episode():
    """One flow and one transcript, whoever drives."""
    policy = ScriptedTokens(TOKENIZER, ["3", "7"])
    [driven] = BatchedRollout(policy, RENDERER, Limits(max_turns=3)).run([Job(GuessEnv(), Task(seed=5), "00000")])
    harness = local(GuessEnv())
    harness.reset(seed=5)
    logprobs = [-0.25, -0.375]
    harness.step(ids("3"), logprobs)
    harness.step(ids("7"), logprobs)
    data = harness.get_episode_data()
    assert data.transcript == driven.transcript
    assert (data.messages, data.rewards, data.ending) == (driven.messages, driven.rewards, driven.ending)


def test_what_generate_returns_may_be_given_whole():
    """The prompt in front of the sampled ids is recognised, also as a tensor of one row."""
    torch = pytest.importorskip("torch")
    harness = local(GuessEnv())
    prompt = harness.reset()
    harness.step(torch.tensor([prompt + ids("3")]))
    harness.step(torch.tensor(ids("7")), torch.tensor([-0.5, -1.0]))
    data = harness.get_episode_data()
    assert [i for i, m in zip(data.transcript.ids, data.transcript.mask, strict=True) if m] == ids("3") + ids("7")


def test_a_turn_without_log_probabilities_has_none():
    """Unknown is None, never 0."""
    harness = local(GuessEnv(), max_turns=1)
    harness.reset()
    harness.step(ids("7"))
    assert set(harness.get_episode_data().transcript.logprobs) == {None}


def test_log_probabilities_are_one_for_each_sampled_id():
    """All or none."""
    harness = local(GuessEnv())
    harness.reset()
    with pytest.raises(TranscriptError, match="got 1 for 2 ids"):
        harness.step(ids("7"), [-0.5])


def test_the_turns_are_used_up_after_max_turns():
    """The environment did not end the episode: it is truncated."""
    harness = local(Recorder(going()), max_turns=2)
    harness.reset()
    assert harness.step(ids("a"))[2:4] == (False, False)
    assert harness.step(ids("b"))[:4] == ([], 0.0, False, True)
    assert harness.get_episode_data().ending is Ending.MAX_TURNS


def test_a_turn_of_max_tokens_without_an_end_token_was_cut():
    """It is not sent to the environment as if it were whole."""
    env = Recorder(over())
    harness = local(env, limits=Limits(max_tokens_per_turn=4))
    harness.reset()
    assert harness.max_tokens == 4
    assert harness.step([65, 66, 67, 68])[:4] == ([], None, False, True)
    assert (env.actions, harness.get_episode_data().ending) == ([], Ending.LENGTH)


def test_a_cut_turn_earns_what_the_limits_say():
    """The reward of a step is that of the record."""
    harness = local(GuessEnv(), limits=Limits(max_tokens_per_turn=2, length_reward=-1.0))
    harness.reset()
    assert harness.step([65, 66])[1] == -1.0
    assert harness.get_episode_data().rewards == (-1.0,)


def test_a_step_without_an_episode_raises():
    """Before the first reset and after the end."""
    harness = local(GuessEnv())
    with pytest.raises(EpisodeOverError, match=r"call reset\(\) first"):
        harness.step(ids("7"))
    harness.reset()
    harness.step(ids("7"))
    with pytest.raises(EpisodeOverError):
        harness.step(ids("7"))
    assert harness.done


def test_a_closed_harness_says_so():
    """Nothing would run the step, and waiting for it would take as long as a step may."""
    harness = local(GuessEnv())
    harness.reset()
    harness.close()
    for again in (lambda: harness.step(ids("7")), harness.reset):
        with pytest.raises(EpisodeOverError, match=r"after close\(\)"):
            again()


@pytest.mark.parametrize("given", ["7", None, 7, [1.5], ["7"]])
def test_what_is_no_list_of_ids_is_refused(given):
    """Text would be taken for ids, letter by letter."""
    harness = local(GuessEnv())
    harness.reset()
    with pytest.raises(ConfigurationError, match="token_ids must be the ids that the model sampled"):
        harness.step(given)


def test_an_observation_that_the_template_refuses_is_a_failure_of_the_environment():
    """It is raised as any other, and the episode has no score."""

    class Pictures:
        def start(self, task):
            return Turn(({"role": "user", "content": "Begin."},))

        def reply(self, reply):
            return Turn(({"role": "user", "content": [{"type": "image"}]},), 1.0)

        def tools(self):
            return []

        def close(self):
            pass

    harness = local(Pictures())
    harness.reset()
    with pytest.raises(EnvError, match=r"^the conversation cannot be put into tokens"):
        harness.step(ids("x"))
    assert (harness.get_episode_data().ending, harness.get_episode_data().reward) == (Ending.ENV_ERROR, None)


def test_the_record_of_an_episode_is_there_when_it_is_over():
    """Not before."""
    harness = local(GuessEnv())
    harness.reset()
    with pytest.raises(ConfigurationError, match="not over"):
        harness.get_episode_data()


def test_a_failure_of_the_environment_is_raised_and_recorded():
    """By hand one wants to see it; the record says that it has no score."""
    harness = local(Recorder(RuntimeError("boom")))
    harness.reset()
    with pytest.raises(EnvError, match="boom"):
        harness.step(ids("x"))
    assert (harness.get_episode_data().ending, harness.get_episode_data().reward) == (Ending.ENV_ERROR, None)


def test_a_step_that_hangs_passes_its_deadline():
    """The call is abandoned, and `close` does not wait for it."""
    gate = threading.Event()
    harness = local(Recorder(gate.wait), limits=Limits(step_timeout_s=0.1))
    harness.reset()
    with pytest.raises(EnvTimeoutError, match=r"step_timeout_s=0\.1"):
        harness.step(ids("x"))
    harness.close()
    gate.set()


def test_the_environment_is_closed_once():
    """At teardown, by whoever comes first."""
    env = Recorder(over())
    with local(env) as harness:
        harness.close()
    assert env.closes == 1
    with pytest.raises(EpisodeOverError):
        harness.reset()


class Rows:
    """An environment with rows and a held-out split."""

    dataset_size = 5
    tools = ({"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {}}},)
    system_prompt = "Be brief."

    def reset(self, seed=None, *, row_index=None, evaluation=None):
        return f"row {row_index} of {'held-out' if evaluation else 'train'}", {}

    def step(self, action):
        return "", 1.0, True, False, {}


def test_rows_and_the_held_out_split_reach_the_environment():
    """`eval_mode` holds for the resets within its block."""
    harness = local(Rows())
    harness.reset(row_index=2)
    with harness.eval_mode():
        harness.reset(row_index=3)
        held_out = harness._episode.transcript.ids
    assert harness.dataset_size == 5
    assert "row 3 of held-out" in TOKENIZER.decode(held_out)
    assert "row 1 of train" in TOKENIZER.decode(harness.reset(row_index=1))


def test_the_system_prompt_leads_the_conversation():
    """It is rendered once, as the system message."""
    prompt = TOKENIZER.decode(local(Rows()).reset(row_index=0))
    assert prompt.startswith("<|im_start|>system\nBe brief.")
    assert prompt.count("Be brief.") == 1


def test_a_system_prompt_of_the_harness_takes_the_place_of_the_environments():
    """One system message, the caller's."""
    prompt = TOKENIZER.decode(local(Rows(), system_prompt="Mine.").reset(row_index=0))
    assert prompt.startswith("<|im_start|>system\nMine.")
    assert "Be brief." not in prompt


def test_the_tools_that_the_environment_advertises_are_seen():
    """They are those of the episode."""
    harness = local(Rows())
    harness.reset(row_index=0)
    assert [tool["function"]["name"] for tool in harness.tools] == ["look"]


def test_an_in_process_client_is_an_environment_too():
    """The errors name the environment itself."""
    harness = RolloutHarness(InProcessEnvClient(Recorder(RuntimeError("boom"))), TOKENIZER, renderer=RENDERER)
    harness.reset()
    with pytest.raises(EnvError, match=r"Recorder\.step"):
        harness.step(ids("x"))


def test_an_observation_may_be_rendered_by_a_field_or_a_function():
    """For environments whose observations are not plain text."""
    payload = {"text": "the board", "score": 3}
    by_field = local(Recorder(over(), opening=lambda: payload), observation_field="text")
    by_function = local(Recorder(over(), opening=lambda: payload), observation_processor=lambda p: f"{p['score']}!")
    assert "user\nthe board<" in TOKENIZER.decode(by_field.reset())
    assert "user\n3!<" in TOKENIZER.decode(by_function.reset())


def test_a_processor_that_forgot_its_return_fails_the_episode():
    """The model would be shown nothing, and would learn from that."""
    harness = local(Recorder(over(), opening=lambda: {"text": "the board"}), observation_processor=lambda p: None)
    with pytest.raises(EnvError, match=r"observation_processor returned None for \{'text': 'the board'\}"):
        harness.reset()


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "guess_env.py"
    path.write_text(
        "from rollout_envs import GuessEnv\n"
        "class Endless(GuessEnv):\n"
        "    max_turns = property(lambda self: None, lambda self, value: None)\n"
    )
    yield str(path)
    for name in [name for name in sys.modules if name.startswith("tiltyard_entrypoint_")]:
        del sys.modules[name]


def test_a_spec_names_the_environment_and_its_arguments(spec):
    """`env_config` is the keyword arguments; the system prompt is set on the environment."""
    config = {"target": 4, "system_prompt": "You are playing."}
    harness = RolloutHarness.from_spec(f"{spec}:GuessEnv", config, TOKENIZER, 2, renderer=RENDERER)
    assert TOKENIZER.decode(harness.reset()).startswith("<|im_start|>system\nYou are playing.")
    assert harness.step(ids("4"))[1] == 1.0
    assert harness.limits.max_turns == 2


def test_the_turn_budget_is_read_off_the_environment_when_it_is_left_out(spec):
    """GuessEnv says three."""
    harness = RolloutHarness.from_spec(f"{spec}:GuessEnv", None, TOKENIZER, renderer=RENDERER)
    assert harness.limits.max_turns == 3


def test_a_turn_budget_that_nobody_states_is_an_error(spec):
    """It is never guessed."""
    with pytest.raises(ConfigurationError, match="give max_turns"):
        RolloutHarness.from_spec(f"{spec}:Endless", None, TOKENIZER, renderer=RENDERER)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "ws://host/ws"])
def test_a_url_is_taken_without_a_server(url):
    """Nothing is dialled before the first reset."""
    harness = RolloutHarness.from_spec(url, None, TOKENIZER, 3, renderer=RENDERER)
    assert (type(harness.env).__name__, harness.limits.max_turns) == ("RemoteEnvClient", 3)
    harness.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RolloutHarness.from_spec("http://host", None, TOKENIZER, renderer=RENDERER), "needs max_turns"),
        (lambda: RolloutHarness.from_spec("http://host", {"a": 1}, TOKENIZER, 3), "takes no env_config"),
        (lambda: RolloutHarness("env.py:Env", TOKENIZER), r"no URL of a server; .*from_spec\('env.py:Env'"),
        (lambda: RolloutHarness(GuessEnv(), TOKENIZER, mcp_tool="x", renderer=RENDERER), "are for environments behind"),
        (lambda: RolloutHarness(GuessEnv(), TOKENIZER, action_field="x", renderer=RENDERER), "are for environments"),
    ],
)
def test_options_of_a_server_and_of_an_environment_are_not_mixed(make, message):
    """Each says which it is for."""
    with pytest.raises(ConfigurationError, match=message):
        make()
