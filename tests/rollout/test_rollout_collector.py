"""Groups for training and single episodes for evaluation."""

import itertools
import threading

import pytest
from rollout_envs import GuessEnv, Recorder, WordEnv, going, over

from tiltyard.errors import ConfigurationError, EnvTimeoutError, GroupMismatchError
from tiltyard.rollout.collector import RolloutCollector
from tiltyard.rollout.harness import RolloutHarness
from tiltyard.rollout.limits import Limits
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.tasks import TaskAssigner, evaluation_tasks
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.testing.tokens import ScriptedTokens
from tiltyard.tokens.renderer import make_renderer
from tiltyard.types import Task

TOKENIZER = byte_tokenizer()
RENDERER = make_renderer(TOKENIZER)


def collector(factory, batch_size=2, group_size=3, *, script=("7",), limits=None, dataset_size=None, **options):
    return RolloutCollector(
        factory,
        batch_size,
        group_size,
        policy=ScriptedTokens(TOKENIZER, list(script)),
        renderer=RENDERER,
        limits=limits or Limits(step_timeout_s=10),
        assigner=TaskAssigner(dataset_size, batch_size),
        **options,
    )


def counting(make):
    """A factory, and the list of what it made."""
    made = []

    def factory():
        made.append(make(len(made)))
        return made[-1]

    return factory, made


def test_a_batch_is_groups_whose_members_share_one_task():
    """batch_size groups of group_size episodes; ids are unique over the run."""
    with collector(GuessEnv) as source:
        first, second = source.collect(), source.collect()
    assert [len(group.members) for group in first] == [3, 3]
    assert all(member.task == group.task for group in first + second for member in group.members)
    ids = [member.episode_id for group in first + second for member in group.members]
    assert len(set(ids)) == 12
    assert ids[:4] == ["00000-000-00", "00000-000-01", "00000-000-02", "00000-001-00"]
    assert len({group.key for group in first + second}) == 4


def test_each_slot_has_one_environment_for_the_whole_run():
    """Created once, reused, closed once."""
    factory, made = counting(lambda number: Recorder(over()))
    with collector(factory, script=["x"]) as source:
        for _ in range(3):
            source.collect()
    assert len(made) == 6
    assert [env.resets for env in made] == [3] * 6
    assert [env.closes for env in made] == [1] * 6


def test_evaluation_has_environments_of_its_own():
    """It never touches those of the training slots, and comes in the order of the tasks."""
    factory, made = counting(lambda number: Recorder(over()))
    source = collector(factory, batch_size=1, group_size=2, script=["x"])
    tasks = evaluation_tasks(5)
    found = source.evaluate(tasks)
    assert [trajectory.task for trajectory in found] == tasks
    assert [env.resets for env in made] == [0, 0, 3, 2] or sum(env.resets for env in made[2:]) == 5
    assert {t.episode_id for t in source.evaluate(tasks)}.isdisjoint(t.episode_id for t in found)
    source.close()
    assert [env.closes for env in made] == [1] * 4


@pytest.mark.parametrize("max_live", [None, 8])
def test_every_episode_sees_its_own_word_only(max_live):
    """Case CO-01 a, c: instances are never shared, 50 times over."""
    source = collector(WordEnv, batch_size=8, group_size=1, max_live=max_live)
    for _ in range(50 if max_live is None else 5):
        for group in source.collect():
            [member] = group.members
            words = {word for message in member.messages for word in message["content"].split() if word[0] == "w"}
            assert {word.strip(".") for word in words if word[1:2].isdigit()} == {f"w{group.task.seed}"}
    source.close()


def test_a_factory_that_returns_one_environment_twice_is_refused_at_construction():
    """Case CO-01 b: with a message that asks for a new one."""
    env = Recorder(over())
    with pytest.raises(ConfigurationError, match=r"the same Recorder for slots 0 and 1.* return a new one"):
        collector(lambda: env)
    assert env.closes == 1


def test_an_environment_in_place_of_a_factory_is_refused():
    """The message shows how to write the factory."""
    with pytest.raises(ConfigurationError, match=r"env_factory=lambda: Recorder\(\.\.\.\)"):
        collector(Recorder(over()))


def test_a_factory_that_fails_leaves_nothing_open():
    """What was made before is closed, and the error is the factory's."""
    made = []

    def factory():
        if len(made) == 2:
            raise OSError("no more")
        made.append(Recorder(over()))
        return made[-1]

    with pytest.raises(OSError, match="no more"):
        collector(factory)
    assert [env.closes for env in made] == [1, 1]


def test_a_factory_of_harnesses_is_taken_too():
    """As in the documentation: each slot its own harness around its own environment."""
    factory = lambda: RolloutHarness.local(GuessEnv(), TOKENIZER, max_turns=3, renderer=RENDERER)  # noqa: E731  # written as the documentation writes it
    with collector(factory) as source:
        members = [member for group in source.collect() for member in group.members]
    assert [(member.reward, member.error) for member in members] == [(1.0, None)] * 6


def test_members_that_saw_different_tasks_are_an_error():
    """Their rewards cannot be compared; the error names both episodes."""
    number = itertools.count()
    source = collector(lambda: Recorder(over(), opening=lambda: f"Task {next(number)}"), 1, 2, script=["x"])
    with pytest.raises(GroupMismatchError, match=r"'00000-000-00' and '00000-000-01' .*'Task 0' and 'Task 1'"):
        source.collect()
    source.close()


def test_a_failed_member_does_not_break_its_group():
    """It is in the group as failed, its environment is replaced, and the next batch is whole."""
    gate = threading.Event()
    scripts = {0: gate.wait, 1: RuntimeError("boom"), 2: lambda: None}
    factory, made = counting(lambda number: Recorder(scripts.get(number, over())))
    source = collector(factory, 2, 4, script=["x"], limits=Limits(step_timeout_s=1.5))
    [first, second] = source.collect()
    assert [member.ending for member in first.members] == [Ending.ENV_ERROR] * 3 + [Ending.DONE]
    assert [member.failed for member in second.members] == [False] * 4
    assert (source.replaced, source.abandoned) == (3, 1)
    assert all(not member.failed for group in source.collect() for member in group.members)
    gate.set()
    source.close()
    assert [env.closes for env in made] == [1] * 11
    assert source.leaked == 0


def test_a_replacement_that_cannot_be_made_fails_its_episode_only():
    """The run goes on, and the slot is tried again."""
    made = []

    def factory():
        if len(made) == 2:
            made.append(None)
            raise OSError("busy")
        made.append(Recorder(RuntimeError("boom") if not made else over()))
        return made[-1]

    source = collector(factory, 1, 2, script=["x"])
    endings = [[member.ending for member in source.collect()[0].members] for _ in range(3)]
    assert endings == [[Ending.ENV_ERROR, Ending.DONE], [Ending.ENV_ERROR, Ending.DONE], [Ending.DONE, Ending.DONE]]
    source.close()


def test_a_replacement_whose_making_hangs_fails_its_episode_and_delays_no_other():
    """The call has the deadline of a step; what comes too late is closed and never played in."""
    gate, made = threading.Event(), []

    def factory():
        made.append(Recorder(RuntimeError("boom") if not made else over()))
        if len(made) == 3:
            gate.wait()
        return made[-1]

    source = collector(factory, 1, 2, script=["x"], limits=Limits(step_timeout_s=1.5))
    source.collect()
    [first, second] = source.collect()[0].members
    assert (first.ending, second.ending) == (Ending.ENV_ERROR, Ending.DONE)
    assert first.error.startswith("EnvTimeoutError: the environment did not return within step_timeout_s=1.5")
    assert [member.ending for member in source.collect()[0].members] == [Ending.DONE] * 2
    gate.set()
    source.close()
    assert [env.resets for env in made] == [1, 3, 0, 1]


def test_an_environment_that_hangs_while_it_is_made_stops_the_start_of_a_run():
    """Nothing could be played; the error says which bound it passed."""
    gate = threading.Event()
    with pytest.raises(EnvTimeoutError, match=r"step_timeout_s=0\.1 .*environment\.request_timeout_s"):
        collector(gate.wait, limits=Limits(step_timeout_s=0.1))
    gate.set()


class BadClose(Recorder):
    def close(self):
        super().close()
        if isinstance(self.name, Exception):
            raise self.name
        if callable(self.name):
            self.name()


def test_every_environment_is_closed_although_some_closes_fail():
    """The errors are raised together at the end, and counted."""
    names = {1: ValueError("one"), 4: ValueError("four")}
    factory, made = counting(lambda number: BadClose(over(), name=names.get(number)))
    source = collector(factory, script=["x"])
    with pytest.raises(ExceptionGroup) as caught:
        source.close()
    assert sorted(str(error) for error in caught.value.exceptions) == [
        "BadClose.close raised ValueError: four",
        "BadClose.close raised ValueError: one",
    ]
    assert [env.closes for env in made] == [1] * 6
    assert source.leaked == 2


def test_a_close_that_hangs_is_not_waited_for_and_counted_as_leaked():
    """The others are closed all the same."""
    gate = threading.Event()
    factory, made = counting(lambda number: BadClose(over(), name=gate.wait if number == 0 else None))
    source = collector(factory, script=["x"])
    source.close(timeout_s=2)
    assert (source.leaked, [env.closes for env in made]) == (1, [1] * 6)
    gate.set()


def test_finished_episodes_are_reported_one_by_one():
    """Training and evaluation, as soon as each is over."""
    seen = []
    with collector(GuessEnv, on_finished=lambda trajectory: seen.append(trajectory.episode_id)) as source:
        source.collect()
        source.evaluate([Task(evaluation=True)])
    assert len(seen) == 7
    assert seen[-1] == "eval000-00000"


def test_the_same_seed_gives_the_same_trajectories_whatever_runs_at_one_time():
    """Sampling, tasks and ids depend on the seed and not on timing."""

    def played(**options):
        with collector(GuessEnv, script=["3", "7"], **options) as source:
            groups = [*source.collect(), *source.collect()]
        return [(m.episode_id, m.task, m.messages, m.rewards, m.transcript) for group in groups for m in group.members]

    assert played() == played(max_live=2) == played(max_live=1, linger_s=0.0)


def test_a_resumed_collector_goes_on_with_the_next_tasks_and_ids():
    """Rows are neither repeated nor left out."""

    class Rows(GuessEnv):
        def reset(self, seed=None, *, row_index=None, evaluation=None):
            return super().reset(seed)

    def run(source, batches):
        return [(g.task, [m.episode_id for m in g.members]) for _ in range(batches) for g in source.collect()]

    whole = run(collector(Rows, dataset_size=5), 4)
    first = collector(Rows, dataset_size=5)
    before = run(first, 2)
    second = collector(Rows, dataset_size=5)
    second.load_state_dict(first.state_dict())
    assert before + run(second, 2) == whole


@pytest.mark.parametrize(("name", "sizes"), [("batch_size", (0, 1)), ("group_size", (1, 0))])
def test_sizes_below_one_are_refused(name, sizes):
    """At construction, naming the argument."""
    with pytest.raises(ConfigurationError, match=f"{name} must be >= 1, got 0"):
        RolloutCollector(
            GuessEnv,
            *sizes,
            policy=ScriptedTokens(TOKENIZER, []),
            renderer=RENDERER,
            limits=Limits(),
            assigner=TaskAssigner(None, 1),
        )


def test_an_assigner_of_another_batch_size_is_refused():
    """It would deal tasks that have no slots."""
    source = RolloutCollector(
        lambda: Recorder(going()),
        2,
        1,
        policy=ScriptedTokens(TOKENIZER, []),
        renderer=RENDERER,
        limits=Limits(),
        assigner=TaskAssigner(None, 3),
    )
    with pytest.raises(ConfigurationError, match="3 tasks for a batch_size of 2"):
        source.collect()
    source.close()


def test_a_part_of_a_batch_is_dealt_the_tasks_that_come_next():
    """Further groups of a step: rows and ids go on where they were; more than a batch has no slots."""
    source = collector(lambda: Recorder(over()), batch_size=3, group_size=1, script=["x"])
    with source:
        batches = [source.collect(), source.collect(groups=1), source.collect()]
        assert [[group.members[0].episode_id for group in batch] for batch in batches] == [
            ["00000-000-00", "00000-001-00", "00000-002-00"],
            ["00001-000-00"],
            ["00002-000-00", "00002-001-00", "00002-002-00"],
        ]
        assert [group.task for batch in batches for group in batch] == TaskAssigner(None, 7).next()
        assert source.of_next(dict.fromkeys(["00002-000-00", "00003-000-00", "00003-002-00"])) == 2
        for count in (0, 4):
            with pytest.raises(ConfigurationError, match=rf"groups must be in 1\.\.3, .* got {count}"):
                source.collect(groups=count)
