"""A check-up for environments: what a run relies on, tried out before the run."""

from collections.abc import Callable, Iterator
from typing import Any

from tiltyard.envs.findings import CheckReport, Finding, Level
from tiltyard.envs.observation import TRUNCATED_MARK
from tiltyard.envs.probes import RAISED, Answer, Play, Subject, first_replies, odd_replies, said, shown
from tiltyard.envs.text_turns import reset_options
from tiltyard.envs.turns import ToolTurns
from tiltyard.errors import ConfigurationError, EnvTimeoutError, RolloutError, TiltyardError
from tiltyard.tools.manager import ToolManager


def check_env(
    env_or_factory: Any,
    *,
    seed: int = 0,
    play: Play | None = None,
    answer: Answer | None = None,
    instances: int = 4,
    max_turns: int = 50,
    timeout_s: float = 10.0,
) -> CheckReport:
    """Try out an environment and say what a run would stumble over.

    Args:
        env_or_factory: Something without arguments that makes an environment, such as its class; or one
            environment, of which what needs several, or closes it, is not tried.
        seed: The task's seed; those that follow it are used as well.
        play: Answers a conversation and its tools, so that episodes get somewhere. None tries simple
            texts, or the first values that the tools' schemas allow.
        answer: Gives the task's answer from an environment that was reset: no observation before the
            last may hold it. None looks for one in `info`.
        instances: How many environments are reset at the same time.
        max_turns: How long an episode is played.
        timeout_s: How long one call may take.

    Raises:
        ConfigurationError: `instances`, `max_turns` or `timeout_s` is out of range.
    """
    if instances < 2 or max_turns < 1 or not timeout_s > 0:
        raise ConfigurationError(
            "check_env needs instances >= 2, max_turns >= 1 and timeout_s > 0, "
            f"got {instances!r}, {max_turns!r} and {timeout_s!r}"
        )
    subject = Subject(env_or_factory, seed, play or first_replies, answer, instances, max_turns, timeout_s)
    passed: list[str] = []
    skipped: list[str] = []
    findings: list[Finding] = []
    for name, check, needs_factory in _CHECKS:
        if needs_factory and not subject.is_factory:
            skipped.append(f"{name} (give a factory, such as the class, to try it)")
            continue
        found = list(_run(name, check, subject))
        known = {finding.message for finding in findings}
        findings += [finding for finding in found if finding.message not in known]
        if not found:
            passed.append(name)
        elif all(finding.message in known for finding in found):
            skipped.append(f"{name} (stopped by an error that is told already)")
        if check is _opens and any(finding.level == "error" for finding in found):
            skipped += [f"{other} (it cannot be opened)" for other, _, _ in _CHECKS[1:]]
            break
    known = {finding.message for finding in findings}
    findings += [finding for finding in _given_back(subject) if finding.message not in known]
    return CheckReport(subject.name, tuple(passed), tuple(findings), tuple(skipped))


Check = Callable[[str, Subject], Iterator[Finding]]


def _run(name: str, check: Check, subject: Subject) -> Iterator[Finding]:
    """One check; a hang or a raise on its way is a finding, and does not stop the others."""
    try:
        yield from check(name, subject)
    except EnvTimeoutError as error:
        yield Finding(name, "error", str(error), "bound what the environment waits for, and raise when the time is up")
    except TiltyardError as error:
        cure = "let the call return what the protocol asks for; raise ToolError for what the model did wrong"
        yield Finding(name, "error", str(error), cure)


def _given_back(subject: Subject) -> Iterator[Finding]:
    """Close what the check made."""
    for env in subject.made:
        yield from _run("close gives back what was made", lambda name, subject, env=env: _close(subject, env), subject)


def _close(subject: Subject, env: Any) -> Iterator[Finding]:
    subject.close(env)
    yield from ()


def _opens(name: str, subject: Subject) -> Iterator[Finding]:
    turns, env = subject.make()
    size = getattr(env, "dataset_size", None)
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        cure = "give the number of training rows, or leave dataset_size out"
        yield Finding(name, "error", f"dataset_size must be a whole number >= 1, got {size!r}", cure)
        return
    if size is not None and not isinstance(turns, ToolTurns):
        missing = {"row_index", "evaluation"} - reset_options(env)
        if missing:
            message = f"an environment with dataset_size is reset by row; its reset does not take {sorted(missing)}"
            yield Finding(name, "error", message, "reset(self, seed=None, row_index=None, evaluation=False)")
            return
    turn = subject.start(turns, env)
    if not any(message["content"] for message in turn.messages) and not turn.done:
        cure = "return the task's text as the first observation, unless every task brings messages of its own"
        yield Finding(name, "warning", "reset gave no observation: the model sees only the task's messages", cure)


def _plays(name: str, subject: Subject) -> Iterator[Finding]:
    turns, env = subject.make()
    if any(TRUNCATED_MARK in turn.info for turn in subject.play(turns, env).turns):
        message = "an observation is longer than the budget of characters: the model does not see its middle"
        yield Finding(name, "warning", message, "return less text, or a tool that reads a part of it")


def _same_seed(name: str, subject: Subject) -> Iterator[Finding]:
    turns, env = subject.make()
    first = shown(subject.start(turns, env).messages)
    played = said(subject.play(turns, env))
    again_turns, again_env = subject.make() if subject.is_factory else (turns, env)
    for where, other in (("after an episode", (turns, env)), ("in another instance", (again_turns, again_env))):
        seen = shown(subject.start(*other).messages)
        if seen != first:
            message = f"seed {subject.seed} gave {_cut(first)} and, {where}, {_cut(seen)}"
            cure = "draw everything random in reset from its seed (trajectory['seed'] in a tool environment)"
            yield Finding(name, "error", message, cure)
            return
    if said(subject.play(again_turns, again_env)) != played:
        message = "the same seed and the same replies led to different observations or rewards"
        cure = "draw from a generator seeded in reset; if chance is part of the task, expect noisier groups"
        yield Finding(name, "warning", message, cure)


def _schemas(name: str, subject: Subject) -> Iterator[Finding]:
    turns, env = subject.make()
    subject.start(turns, env)
    manager = ToolManager()
    for schema in turns.tools():
        try:
            manager.register(_Named(schema))
        except ConfigurationError as error:
            yield Finding(name, "error", str(error), "give OpenAI function-call schemas with unique names")
            continue
        function = schema["function"]
        if not function.get("description"):
            message = f"tool {function['name']!r} has no description: the model sees only its name"
            yield Finding(name, "warning", message, "say in 'description' what the tool does")


class _Named:
    """A schema as a tool, to be registered and never called."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema

    def __call__(self, tool_name: str, arguments: dict[str, Any]) -> str:
        return ""

    def tool_info(self) -> dict[str, Any]:
        return self._schema


def _odd_replies(name: str, subject: Subject) -> Iterator[Finding]:
    failed: dict[str, list[str]] = {}
    for what, reply in odd_replies(subject):
        turns, env = subject.make()
        subject.start(turns, env)
        try:
            subject.reply(turns, reply)
        except EnvTimeoutError:
            raise
        except RolloutError as error:
            failed.setdefault(str(error), []).append(what)
    for error, replies in failed.items():
        message = f"a reply made the episode fail: {error} (with {'; '.join(replies)})"
        cure = "return an observation that tells the model what to do, or raise ToolError with that text"
        yield Finding(name, "error", message, cure)


def _ends(name: str, subject: Subject) -> Iterator[Finding]:
    turns, env = subject.make()
    played = subject.play(turns, env)
    if not played.over:
        message = f"{len(played.turns) - 1} replies did not end an episode, so the end was not seen"
        yield Finding(name, "warning", message, "give check_env(play=...) that reaches the end, or a larger max_turns")
        return
    last = played.turns[-1]
    if last.done and last.reward is None:
        message = "the last step was done with reward None: the episode counts as failed"
        yield Finding(name, "error", message, "give the last step a number as its reward")
    reward = subject.step_after_the_end(turns, env, played)
    if reward is not RAISED:
        message = f"a step after the end should be refused; it returned, with reward {reward!r}"
        cure = "raise tiltyard.EpisodeOverError in step until reset is called: the loop never asks, other callers may"
        yield Finding(name, "warning", message, cure)


def _keeps_secrets(name: str, subject: Subject) -> Iterator[Finding]:
    turns, env = subject.make()
    played = subject.play(turns, env)
    before_end = played.turns[:-1] if played.over else played.turns
    for what, text in subject.secrets(env, played):
        holding = next((shown(turn.messages) for turn in before_end if text in shown(turn.messages)), None)
        if holding is not None:
            message = f"{what} {_cut(text)} is in an observation that the model sees before the end: {_cut(holding)}"
            level: Level = "error" if subject.answer is not None else "warning"
            yield Finding(name, level, message, "keep it out of the text; put what evaluation needs into info")
    for turn in played.turns:
        told = subject.tells_the_reward(shown(turn.messages))
        if told is not None:
            message = f"an observation tells {told!r}, which the model must not see: {_cut(shown(turn.messages))}"
            yield Finding(name, "error", message, "return reward and done as such; keep them out of the observation")
            return


def _closes(name: str, subject: Subject) -> Iterator[Finding]:
    turns, env = subject.make()
    subject.start(turns, env)
    for count in ("first", "second"):
        try:
            subject.close(env)
        except EnvTimeoutError:
            raise
        except RolloutError as error:
            message = f"the {count} call of close failed: {error}"
            yield Finding(name, "error", message, "let close return when there is nothing left to give back")
            return


def _at_once(name: str, subject: Subject) -> Iterator[Finding]:
    made = [subject.make() for _ in range(subject.instances)]
    if len({id(env) for _, env in made}) < len(made):
        cure = "make a new environment at each call"
        yield Finding(name, "error", "the factory gave the same object twice: episodes would mix", cure)
        return
    expected = [shown(subject.start(*made[0], seed=subject.seed + i).messages) for i in range(len(made))]
    seen = subject.start_all(made)
    for i, (one, other) in enumerate(zip(expected, seen, strict=True)):
        if one != other:
            message = f"seed {subject.seed + i} gave {_cut(one)} alone and {_cut(other)} when {len(made)} were reset"
            cure = (
                "keep the state in the instance: no module globals, class attributes, files of one name or os.environ"
            )
            yield Finding(name, "error", f"{message} at once", cure)
            return


_CHECKS: tuple[tuple[str, Check, bool], ...] = (
    ("it can be made and reset", _opens, False),
    ("an episode can be played", _plays, False),
    ("the same seed gives the same first observation", _same_seed, False),
    ("tool schemas are valid", _schemas, False),
    ("whatever the model writes gets an answer", _odd_replies, False),
    ("an episode ends, and stays ended", _ends, False),
    ("observations hold neither reward nor answer", _keeps_secrets, False),
    ("close can be called twice", _closes, True),
    ("resets at the same time do not mix", _at_once, True),
)


def _cut(text: str, limit: int = 160) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "…")
