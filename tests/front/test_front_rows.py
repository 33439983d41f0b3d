"""Trajectories as dicts: what goes in, what comes back, and what is refused."""

import asyncio
import json
import threading
from dataclasses import fields

import numpy as np
import pytest
from front_scripts import ASK, BOTH, SUBMIT, TOKENIZER, Lab, ServedTokens, call, local, rows, served

from tiltyard.envs.base import Env
from tiltyard.envs.tool import EnvTool
from tiltyard.errors import ConfigurationError, PolicyError
from tiltyard.rollout.api_multi_turn import APIMultiTurnRollout
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.multi_turn import MultiTurnRollout
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trace import from_record, read_traces
from tiltyard.testing.tokens import ScriptedTokens
from tiltyard.tools.base import tool
from tiltyard.tools.manager import ToolManager
from tiltyard.types import StepResult


@tool
def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return str(a + b)


CALCULATOR = ToolManager([add])
ADD = [call("add", a=1, b=2), "3"]


@pytest.mark.parametrize("make", BOTH)
def test_as_many_come_back_as_went_in_with_their_own_fields(make):
    """The input dict, with what happened over it; the input itself is not changed."""
    given = [{"messages": [ASK], "id": "a", "answer": 3}, {"messages": [{**ASK, "content": "Add."}], "answer": 4}]
    before = json.dumps(given)
    results = make(ADD, tool_manager=CALCULATOR)(given)
    assert json.dumps(given) == before
    assert [result["answer"] for result in results] == [3, 4]
    assert [result["messages"][0]["content"] for result in results] == ["Go.", "Add."]
    assert [m["role"] for m in results[0]["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert (results[0]["stop_reason"], results[0]["turns"], results[0]["rewards"]) == ("stop", 2, [0.0, 0.0])


@pytest.mark.parametrize("make", BOTH)
def test_an_empty_list_gives_an_empty_list(make):
    """Nothing is asked of anyone."""
    assert make(ADD, tool_manager=CALCULATOR)([]) == []


@pytest.mark.parametrize("make", BOTH)
def test_without_tools_the_model_answers_once(make):
    """A rollout without tools or environment is one answer for each prompt."""
    [result] = make(["Hello."])(rows(1))
    assert (result["messages"][-1], result["stop_reason"]) == ({"role": "assistant", "content": "Hello."}, "stop")


@pytest.mark.parametrize("make", BOTH)
def test_stop_reasons_are_the_values_of_one_enum(make):
    """Row T16: both rollouts use the names of `Ending` and no others."""
    [result] = make([ADD[0]] * 3, tool_manager=CALCULATOR, max_turns=2)(rows(1))
    assert (Ending(result["stop_reason"]), result["truncated"]) == (Ending.MAX_TURNS, True)
    assert type(result["stop_reason"]) is str


@pytest.mark.parametrize("make", BOTH)
def test_what_is_not_of_the_loop_reaches_the_environment(make):
    """`messages`, `seed` and the row's own fields are given to reset; `tools` and `episode_id` are not."""
    seen = []

    class Asking(Env):
        def reset(self, trajectory=None):
            seen.append(trajectory)
            return StepResult("begin")

        def step(self, tool_name, arguments):
            return StepResult("", 1.0, True)

    make(["no"], env_factory=Asking, preflight=False)(rows(1, seed=7, word="owl", episode_id="e"))
    assert seen == [
        {"messages": [ASK], "seed": 7, "row_index": None, "evaluation": False, "word": "owl"},
    ]


@pytest.mark.parametrize("make", BOTH)
def test_members_of_a_group_share_their_seed_and_not_their_episode_id(make):
    """Rows T3 and T17: keys under `id` may repeat; equal ones are one task."""
    seeds = []

    class Seeded(Lab):
        def reset(self, trajectory=None):
            seeds.append(trajectory["seed"])
            return super().reset(trajectory)

    rollout = make(["no"], env_factory=Seeded, preflight=False)
    results = rollout([*rows(4, id="a"), *rows(4, id="b")])
    assert len({result["episode_id"] for result in results}) == 8
    assert len(set(seeds)) == 2
    assert {result["episode_id"] for result in rollout(rows(4, id="a"))}.isdisjoint(r["episode_id"] for r in results)


@pytest.mark.parametrize("make", BOTH)
def test_a_repeated_episode_id_is_refused(make):
    """It would be one line over the other in a trace."""
    with pytest.raises(ConfigurationError, match="episode id 'e'"):
        make(ADD, tool_manager=CALCULATOR)(rows(2, episode_id="e"))


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"messages": [ASK]}, "got one dict"),
        (["Go."], "trajectory 0 is a str"),
        ([{"messages": "Go."}], "trajectory 0: messages must be a list"),
        ([{"messages": (one for one in [ASK])}], "trajectory 0: messages must be a list"),
        ([{"messages": 5}], "trajectory 0: messages must be a list"),
        ([{"messages": [ASK, {"content": "Go."}]}], "trajectory 0: message 1 is"),
        ([{"messages": [{"role": None, "content": "Go."}]}], "trajectory 0: message 0 is"),
        ([{"messages": [{"role": "user", "content": 5}]}], "trajectory 0: message 0 is"),
        ([{"messages": [ASK], "tools": [{"name": "add"}]}], "trajectory 0: a tool schema must be"),
        ([{"messages": [ASK], "tools": '[{"type": "function"}]'}], "trajectory 0: tools must be a list"),
        ([{"messages": [ASK], "tools": {"type": "function"}}], "trajectory 0: tools must be a list"),
        ([{"messages": [ASK], "tools": 5}], "trajectory 0: tools must be a list"),
        ([{"messages": [{"role": "assistant", "tool_calls": "add"}]}], "trajectory 0: message 0 is"),
        ([{"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}], "trajectory 0: message 0 is"),
        ([{"messages": [ASK], "seed": "abc"}], "trajectory 0: seed must be a whole number, got 'abc'"),
        ([{"messages": [ASK], "row_index": 3.0}], "trajectory 0: row_index must be a whole number, got 3.0"),
        ([{"messages": [ASK], "evaluation": "False"}], "trajectory 0: evaluation must be True or False, got 'False'"),
        (None, "takes a list of trajectories, got None"),
    ],
)
def test_what_is_no_trajectory_is_refused_by_its_place(make, given, problem):
    """Before anything is sampled."""
    with pytest.raises(ConfigurationError, match=problem):
        make(ADD, tool_manager=CALCULATOR, preflight=False)(given)


@pytest.mark.parametrize("make", BOTH)
def test_a_row_of_a_table_is_a_trajectory(make):
    """Parquet gives arrays where JSON has lists, and None for what another row has."""
    system = {"role": "system", "content": "Be brief.", "name": None, "tool_calls": None}
    made = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    called = {"role": "assistant", "content": "", "tool_calls": np.array([made, {**made, "id": "d"}], dtype=object)}
    results = [{"role": "tool", "content": "3", "tool_call_id": name} for name in "cd"]
    messages = np.array([system, ASK, called, *results, ASK], dtype=object)
    row = {"messages": messages, "tools": None, "seed": np.int64(4), "evaluation": np.bool_(True), "id": np.int64(3)}
    [result] = make(["ok"])([row])
    assert [message["role"] for message in result["messages"][-3:]] == ["tool", "user", "assistant"]
    assert result["error"] is None


@pytest.mark.parametrize("make", BOTH)
def test_the_schemas_of_the_tools_reach_the_prompt(make):
    """Row T27: the model is shown what the manager can run, whichever rollout it is."""
    rollout = make(ADD, tool_manager=CALCULATOR)
    [result] = rollout(rows(1))
    assert result["tools"] == CALCULATOR.tool_infos()
    assert '"name": "add"' in TOKENIZER.decode(result["input_ids"])


@pytest.mark.parametrize("make", BOTH)
def test_a_trajectory_may_show_some_of_the_tools_only(make):
    """Row T2: what is not shown cannot be called either, and every schema is the manager's own."""
    lines = [call("submit", text="3"), call("add", a=1, b=2), "3"]
    rollout = make(lines, env_factory=Lab, preflight=False)
    [result] = rollout(rows(1, tools=["add"]))
    assert [tool["function"]["name"] for tool in result["tools"]] == ["add"]
    answers = [message["content"] for message in result["messages"] if message["role"] == "tool"]
    assert answers == ["Error: there is no tool 'submit'; the tools are: add", "3"]


@pytest.mark.parametrize("make", BOTH)
def test_a_tool_that_nobody_can_run_is_refused(make):
    """Row T2: a name in the prompt that the registry does not have would be an unknown tool at every call."""
    shown = [{"type": "function", "function": {"name": "play", "description": "Play."}}]
    with pytest.raises(ConfigurationError, match=r"shows the tools \['play'\].*there are: add"):
        make(ADD, tool_manager=CALCULATOR)(rows(1, tools=shown))


@pytest.mark.parametrize("make", BOTH)
def test_a_tool_that_the_environment_lacks_fails_its_trajectory_only(make):
    """Which tools an environment has is known when it was reset."""
    given = [*rows(1, tools=["play"]), *rows(1)]
    results = make([SUBMIT], env_factory=Lab, preflight=False)(given)
    assert [result["stop_reason"] for result in results] == ["env_error", "done"]
    assert "'play'" in results[0]["error"]


def lab_manager():
    return ToolManager(EnvTool.from_env(Lab()))


@pytest.mark.parametrize("make", BOTH)
def test_one_stateful_environment_is_not_shared(make):
    """Row T13: four trajectories would play in one environment; the message asks for a factory."""
    with pytest.raises(ConfigurationError, match=r"one Lab was given to several episodes.*factory"):
        make([SUBMIT], tool_manager=lab_manager())(rows(4))
    shared = lab_manager()
    with pytest.raises(ConfigurationError, match="one Lab"):
        make([SUBMIT], tool_manager=[shared, shared])(rows(2))
    env = Lab()
    with pytest.raises(ConfigurationError, match="one Lab for two episodes"):
        make([SUBMIT], tool_manager=lambda: ToolManager(EnvTool.from_env(env)), preflight=False)(rows(4))


@pytest.mark.parametrize("make", BOTH)
def test_a_shared_environment_is_refused_in_a_stream_too(make):
    """There the second trajectory is the first that can be seen to share."""
    with pytest.raises(ConfigurationError, match="trajectories 0 and 1 share one Lab"):
        list(make([SUBMIT], tool_manager=lab_manager()).stream(iter(rows(2))))


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("kind", ["one", "list", "factory", "factory of the trajectory", "environments"])
def test_tools_come_from_one_manager_a_list_or_a_factory(make, kind):
    """A set of tools without state may serve all trajectories."""
    options = {
        "one": {"tool_manager": CALCULATOR},
        "list": {"tool_manager": [lab_manager() for _ in range(3)]},
        "factory": {"tool_manager": lab_manager},
        "factory of the trajectory": {"tool_manager": lambda row: lab_manager() if row else None},
        "environments": {"env_factory": Lab},
    }[kind]
    results = make([call("add", a=1, b=2), "3"], **options)(rows(3))
    assert [result["messages"][-2]["content"] for result in results] == ["3"] * 3


async def never_awaited(result):
    """Called without `await` it would do nothing, and nobody would be told."""


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tool_manager": CALCULATOR, "env_factory": Lab}, "both given"),
        ({"tool_manager": [add]}, "holds a FunctionTool"),
        ({"tool_manager": 3}, "must be a ToolManager"),
        ({"env_factory": Lab()}, "env_factory=lambda: Lab"),
        ({"limits": Limits(max_turns=9)}, "max_turns is 6 and limits.max_turns is 9"),
        ({"limits": Limits(max_context=9), "max_trajectory_tokens": 8}, "one limit"),
        ({"concurrency": 0}, "concurrency must be a whole number >= 1"),
        ({"concurrency": "8"}, "concurrency must be a whole number >= 1, got '8'"),
        ({"max_turns": 2.5}, "max_turns must be a whole number >= 1, got 2.5"),
        ({"max_turns": True}, "max_turns must be a whole number >= 1, got True"),
        ({"max_trajectory_tokens": "64"}, "max_context must be a whole number >= 1 or None"),
        ({"max_observation_chars": 0}, "max_observation_chars must be a whole number >= 1 or None"),
        ({"limits": {"max_turns": 3}}, r"limits must be a Limits\(...\)"),
        ({"trace_callback": 5}, "trace_callback must be a function that is not async"),
        ({"trace_callback": never_awaited}, "trace_callback must be a function that is not async"),
        ({"success_callback": 5}, "success_callback must be callable"),
        ({"reward_fns": 5}, "reward_fns must be a function, or a list or dict"),
        ({"reward_weights": [1.0]}, "reward_weights must be a dict"),
        ({"reward_weights": {"env": "1"}}, "weight of 'env' must be a finite number"),
        ({"score": "judge"}, "score must be"),
    ],
)
def test_what_cannot_work_is_refused_by_the_constructor(make, options, problem):
    """Before a model is asked or an environment made."""
    with pytest.raises(ConfigurationError, match=problem):
        make(ADD, **options)


@pytest.mark.parametrize("make", BOTH)
def test_a_list_of_managers_has_one_for_each_trajectory(make):
    """Two and three do not fit."""
    with pytest.raises(ConfigurationError, match="a list of 2 for 3 trajectories"):
        make(ADD, tool_manager=[lab_manager(), lab_manager()])(rows(3))


@pytest.mark.parametrize("make", BOTH)
def test_a_factory_that_raises_fails_its_own_trajectory(make):
    """Row T12: one trajectory's trouble is its own."""
    made = iter([True, False, True])

    def factory():
        if not next(made):
            raise OSError("no sandbox left")
        return lab_manager()

    results = make([SUBMIT], tool_manager=factory, preflight=False, concurrency=1)(rows(3))
    assert [result["stop_reason"] for result in results] == ["done", "env_error", "done"]
    assert "no sandbox left" in results[1]["error"]


def test_a_policy_that_raises_whatever_fails_its_own_trajectory():
    """Row T12: nothing that a client or a response raises loses the other results."""

    class Raising(ServedTokens):
        async def reply(self, prompt, *, max_tokens):
            if prompt.messages[0]["content"] == "Fail.":
                raise KeyError("choices")
            return await super().reply(prompt, max_tokens=max_tokens)

    rollout = APIMultiTurnRollout(Raising([SUBMIT]), env_factory=Lab)
    given = [*rows(1), {"messages": [{**ASK, "content": "Fail."}]}, *rows(1)]
    results = rollout(given)
    assert [result["stop_reason"] for result in results] == ["done", "api_error", "done"]
    assert [result["reward"] for result in results] == [1.0, None, 1.0]


def test_a_local_policy_that_fails_fails_the_trajectories_that_it_was_asked_for():
    """The rollout itself goes on."""
    results = local([PolicyError("out of memory")], env_factory=Lab)(rows(2))
    assert [(result["stop_reason"], result["reward"]) for result in results] == [("api_error", None)] * 2


@pytest.mark.parametrize("make", BOTH)
def test_environments_that_were_made_are_closed_and_those_given_are_not(make):
    """Whoever makes an environment closes it; one of a factory is reused, unless it broke."""
    made = []

    def factory():
        made.append(Lab())
        return made[-1]

    make([SUBMIT], env_factory=factory, concurrency=2, preflight=False)(rows(6))
    assert (len(made) <= 2, [env.closed for env in made]) == (True, [1] * len(made))
    made.clear()
    make([call("crash")], env_factory=factory, concurrency=1, preflight=False)(rows(3))
    assert [env.closed for env in made] == [1, 1, 1]
    given = Lab()
    make([SUBMIT], tool_manager=ToolManager(EnvTool.from_env(given)))(rows(1))
    assert given.closed == 0


@pytest.mark.parametrize("make", BOTH)
def test_the_tools_of_different_trajectories_run_at_the_same_time(make):
    """Row T14: each of the eight waits until all eight are there."""
    together = threading.Barrier(8)

    @tool
    def meet() -> str:
        """Wait for the others."""
        together.wait(20)
        return "met"

    results = make([call("meet"), "ok"], tool_manager=ToolManager([meet]))(rows(8))
    assert {result["messages"][-2]["content"] for result in results} == {"met"}


@pytest.mark.parametrize("make", BOTH)
def test_a_trace_has_each_episode_with_its_tokens_and_reads_back(make, tmp_path):
    """Row T17: eight samples of one task are eight lines of one file, with ids, mask and log-probabilities."""
    rollout = make([SUBMIT], env_factory=Lab, trace_dir=tmp_path)
    results = rollout(rows(8, id="a", answer=3))
    records = list(read_traces(rollout.traces.path))
    by_id = {record["episode_id"]: from_record(record) for record in records}
    assert len(by_id) == 8
    for result in results:
        trajectory = by_id[result["episode_id"]]
        assert (trajectory.transcript.ids, trajectory.reward) == (result["input_ids"], 1.0)
        assert trajectory.task.data == {"id": "a", "answer": 3}


@pytest.mark.parametrize("make", BOTH)
def test_each_rollout_writes_a_file_of_its_own(make, tmp_path):
    """Calls of one rollout go on in its file; another rollout does not write into it."""
    first, second = (make([SUBMIT], env_factory=Lab, trace_dir=tmp_path) for _ in range(2))
    first(rows(2))
    second(rows(1))
    first(rows(1))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["rollout-000.jsonl", "rollout-001.jsonl"]
    assert len(list(read_traces(first.traces.path))) == 3


@pytest.mark.parametrize("make", BOTH)
def test_a_trace_that_cannot_be_written_is_warned_of_and_costs_no_result(make, tmp_path):
    """Row T17: neither silent nor fatal."""
    (tmp_path / "taken").write_text("")
    rollout = make([SUBMIT], env_factory=Lab, trace_dir=tmp_path / "taken")
    with pytest.warns(UserWarning, match="was not written"):
        results = rollout(rows(1))
    assert (results[0]["reward"], rollout.traces.failed) == (1.0, 1)


@pytest.mark.parametrize("make", BOTH)
def test_the_callback_gets_each_result(make):
    """As it is returned."""
    seen = []
    results = make([SUBMIT], env_factory=Lab, trace_callback=seen.append)(rows(3))
    assert sorted(r["episode_id"] for r in seen) == sorted(r["episode_id"] for r in results)


class WordEnv(Env):
    """Case CO-01: the episode's word is written to the instance, and read back after a pause."""

    def reset(self, trajectory=None):
        self.word = trajectory["word"]
        return StepResult("begin")

    def step(self, tool_name, arguments):
        threading.Event().wait(0.002)
        return StepResult(self.word, 1.0, True)

    def tools(self):
        return [{"type": "function", "function": {"name": "whoami", "description": "Who?"}}]


@pytest.mark.parametrize("make", BOTH)
def test_each_trajectory_has_its_own_word(make):
    """Case CO-01 (a, c): fifty repeats, eight at once, nothing mixed up."""
    rollout = make([call("whoami")], env_factory=WordEnv, preflight=False)
    for _ in range(50):
        results = rollout([{"messages": [ASK], "word": f"w{number}"} for number in range(8)])
        assert [result["messages"][-1]["content"] for result in results] == [f"w{number}" for number in range(8)]


def test_a_rollout_runs_inside_an_event_loop_too():
    """A notebook has one; `await rollout.run_async(...)` is the same without a thread."""
    rollout = served([SUBMIT], env_factory=Lab)

    async def main():
        return rollout(rows(1)), await rollout.run_async(rows(1))

    one, other = asyncio.run(main())
    assert (one[0]["reward"], other[0]["reward"]) == (1.0, 1.0)


def test_sampling_fields_go_to_the_server_and_the_token_limit_to_the_limits():
    """What the api cannot take is refused by name."""
    with pytest.raises(ConfigurationError, match="ServedTokens has no with_fields"):
        APIMultiTurnRollout(ServedTokens(ADD), CALCULATOR, {"temperature": 0.5})
    [result] = APIMultiTurnRollout(ServedTokens(["x" * 50]), CALCULATOR, {"max_tokens": 10})(rows(1))
    assert (result["stop_reason"], len(result["messages"][-1]["content"])) == ("length", 10)


@pytest.mark.parametrize("policy", ["gpt", ServedTokens([]), ScriptedTokens])
def test_the_local_rollout_takes_a_policy_of_tokens(policy):
    """A served model, a name or a class would fail with the first sample."""
    with pytest.raises(ConfigurationError, match=r"policy must continue token sequences.*APIMultiTurnRollout"):
        MultiTurnRollout(policy, tokenizer=TOKENIZER)


@pytest.mark.parametrize("policy", ["gpt", ScriptedTokens(TOKENIZER, []), ServedTokens])
def test_the_api_rollout_takes_a_policy_of_messages(policy):
    """A local model, a name or a class would fail with the first reply."""
    with pytest.raises(ConfigurationError, match=r"must answer messages, as OpenAI.*MultiTurnRollout"):
        APIMultiTurnRollout(policy)


def test_a_tokenizer_is_one_of_transformers():
    """The name of a model is none."""
    with pytest.raises(ConfigurationError, match=r"must be one of transformers, got 'qwen'.*from_pretrained"):
        MultiTurnRollout(ScriptedTokens(TOKENIZER, []), tokenizer="qwen")(rows(1))


def test_the_local_rollout_needs_a_tokenizer_or_a_renderer():
    """Nothing is guessed from the policy."""
    with pytest.raises(ConfigurationError, match="tokenizer="):
        MultiTurnRollout(ScriptedTokens(TOKENIZER, ADD), CALCULATOR)


@pytest.mark.parametrize("make", BOTH)
def test_every_limit_can_be_given(make):
    """`limits` reaches the loop as a whole; the order of its checks is written in `Limits`."""
    names = {field.name for field in fields(Limits)}
    assert {"max_tool_calls", "max_seconds", "step_timeout_s", "max_context"} <= names
    both = f"{call('add', a=1, b=2)}\n{call('add', a=3, b=4)}"
    [result] = make([both], tool_manager=CALCULATOR, limits=Limits(max_tool_calls=1))(rows(1))
    assert result["stop_reason"] == "max_tool_calls"
