"""A whole check before a run: the environment is tried out, a few episodes are played, and what a run needs is said."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tiltyard.build import preflight_manifest, turns_factory
from tiltyard.envs.check import check_env
from tiltyard.envs.findings import CheckReport, Finding
from tiltyard.errors import GroupMismatchError, ManifestError, RolloutError
from tiltyard.manifest import EnvironmentSection, Manifest, ModelSection
from tiltyard.manifest.algorithms import PolicyGradientSection
from tiltyard.manifest.probing import EnvFacts, env_factory, probe
from tiltyard.planning import assigner, held_out_tasks, limits
from tiltyard.rehearsal import BYTES_A_TOKEN, Rehearsal, Rehearsed, rehearse
from tiltyard.rollout.groups import same_task
from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.preflight import PreflightReport
from tiltyard.types import Task

TASKS = 3
"""Training tasks that are played; and one that is held out, where the run evaluates."""

MAX_TURNS = 50
"""How long an episode is played where neither a manifest nor the environment says it."""

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run of the manifest takes.

    Attributes:
        groups: Groups of one step.
        group_size: Episodes of each.
        steps: Steps of the run.
        max_turns: Turns of one episode.
        turn_tokens: Sampled tokens of one turn.
        held_out: Tasks of one evaluation; 0 where none is made.
        remote: Whether the environment runs behind a URL.
    """

    groups: int
    group_size: int
    steps: int
    max_turns: int
    turn_tokens: int
    held_out: int
    remote: bool

    @property
    def evaluated(self) -> int:
        """Environments of an evaluation: it has its own, beside those that train, and as many at most."""
        return min(self.held_out, self.groups * self.group_size)

    @property
    def sessions(self) -> int:
        """Environments at one time: one for each episode of a step, and those of the evaluation."""
        return self.groups * self.group_size + self.evaluated


@dataclass(frozen=True, slots=True)
class ManifestCheck:
    """What `check_manifest` found.

    Attributes:
        facts: What the environment says about itself.
        preflight: What a run relies on, tried out.
        env: What `check_env` says.
        rehearsal: The episodes that were played; None where the environment cannot be opened.
        needs: What the run takes; None where only an environment is checked.
        findings: What would go wrong, beside what `env` says.
    """

    facts: EnvFacts
    preflight: PreflightReport
    env: CheckReport
    rehearsal: Rehearsal | None
    needs: Needs | None
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True without errors; warnings do not count."""
        return self.env.ok and not any(finding.level == "error" for finding in self.findings)

    def __str__(self) -> str:
        lines = [str(self.preflight), str(self.env)]
        if self.rehearsal is not None:
            lines += _figures(self.rehearsal, self.needs)
        return "\n".join([*lines, *map(str, self.findings)])


def check_entrypoint(entrypoint: str) -> ManifestCheck:
    """Try out an environment by its entrypoint, under the defaults of a manifest.

    Raises:
        ManifestError: It cannot be made.
        ConfigurationError: A throwaway environment could not be reset, or its tools cannot be used.
    """
    section = EnvironmentSection(env_type="rollout", entrypoint=entrypoint)
    try:
        probe(section, env_factory(section))
    except ManifestError:  # without max_turns most often; anything else is found again, and told
        section = section.model_copy(update={"max_turns": MAX_TURNS})
    return replace(check_manifest(Manifest(environment=section, model=ModelSection(name="none"))), needs=None)


def check_manifest(manifest: Manifest) -> ManifestCheck:
    """Try out the environment of a checked manifest, without its model.

    Raises:
        ManifestError: The environment cannot be made as the manifest says.
        ConfigurationError: A throwaway environment could not be reset, or its tools cannot be used.
    """
    factory = env_factory(manifest.environment)
    facts = probe(manifest.environment, factory)
    report = preflight_manifest(manifest, facts)
    findings: list[Finding] = []
    held_out = _held_out(manifest, facts, findings)
    env, needs = check_env(factory), _needs(manifest, facts, len(held_out))
    findings += _of_rows(facts, needs)
    tasks = [*_first_tasks(manifest, facts), *held_out[:1]]
    rehearsal = None
    if env.ok:
        bounds = limits(manifest, facts)
        try:
            rehearsal = rehearse(turns_factory(manifest), tasks, bounds, measured=not needs.remote)
        except RolloutError as error:
            findings.append(Finding("a few episodes are played", "error", str(error), "see what it raised"))
        else:
            for rule in _RULES:
                findings += rule(rehearsal, manifest, needs)
    return ManifestCheck(facts, report, env, rehearsal, needs, tuple(findings))


def _needs(manifest: Manifest, facts: EnvFacts, held_out: int) -> Needs:
    algorithm, training = manifest.algorithm, manifest.training
    assert isinstance(algorithm, PolicyGradientSection), "the manifest was checked"
    return Needs(
        training.batch_size,
        algorithm.group_size,
        training.steps,
        facts.max_turns,
        manifest.rollout.max_tokens_per_turn,
        held_out,
        manifest.environment.env_url is not None,
    )


def _first_tasks(manifest: Manifest, facts: EnvFacts) -> list[Task]:
    """The first tasks of the run, no two alike."""
    tasks = dict.fromkeys((task.seed, task.row_index) for task in assigner(manifest, facts).next())
    return [Task(seed=seed, row_index=row) for seed, row in [*tasks][:TASKS]]


def _held_out(manifest: Manifest, facts: EnvFacts, findings: list[Finding]) -> list[Task]:
    """The tasks of one evaluation; none where none is made, or where there are too few, which is a finding."""
    planned = manifest.training.eval
    try:
        tasks = held_out_tasks(manifest, facts)
    except ManifestError as error:
        cure = "ask for fewer, or hold out more rows"
        findings.append(Finding("there are as many held-out tasks as are asked for", "error", str(error), cure))
        return []
    return tasks if planned.before or planned.after or planned.every else []


def _of_rows(facts: EnvFacts, needs: Needs) -> Iterator[Finding]:
    if facts.rows is not None and facts.rows < needs.groups:
        message = f"{facts.rows} training rows and {needs.groups} groups a step: each row is played again in every step"
        yield Finding("there are rows enough", "warning", message, "give more rows, or a smaller training.batch_size")


def _members_agree(played: Rehearsal, manifest: Manifest, needs: Needs) -> Iterator[Finding]:
    del manifest, needs
    for group in played.groups:
        members = [episode.trajectory for episode in group]
        try:
            same_task(members[0].task, members)
        except GroupMismatchError as error:
            cure = "draw everything random in reset from its seed and row_index, and nothing from earlier episodes"
            yield Finding("all members of a group are asked the same", "error", str(error), cure)
            return


def _none_fails(played: Rehearsal, manifest: Manifest, needs: Needs) -> Iterator[Finding]:
    del manifest, needs
    failed = [episode.trajectory for episode in played.episodes if episode.trajectory.failed]
    if failed:
        message = f"{len(failed)} of {len(played.episodes)} episodes failed, the first with {failed[0].error}"
        cure = "an episode that fails has no reward and teaches nothing: let step answer whatever the model writes"
        yield Finding("no episode fails", "error", message, cure)


def _they_end(played: Rehearsal, manifest: Manifest, needs: Needs) -> Iterator[Finding]:
    del manifest
    if all(episode.trajectory.ending is Ending.MAX_TURNS for episode in played.episodes):
        message = f"none of {len(played.episodes)} episodes ended before the limit of {needs.max_turns} turns"
        cure = "let step say that the episode is over, or give a larger environment.max_turns"
        yield Finding("episodes end by themselves", "warning", message, cure)


def _rewards_differ(played: Rehearsal, manifest: Manifest, needs: Needs) -> Iterator[Finding]:
    del needs
    rule = "rewards tell one answer from another"
    rewards = [episode.trajectory.reward for episode in played.episodes if not episode.trajectory.failed]
    scored = [reward for reward in rewards if reward is not None]
    if rewards and not scored:
        cut = all(
            episode.trajectory.ending is Ending.MAX_TURNS for episode in played.episodes
        )  # before a score at its end
        told = "no turn was scored: every reward is None"
        yield Finding(
            rule, "warning" if cut else "error", told, "give a number as the reward, at the end of an episode"
        )
    elif len(scored) > 1 and len(set(scored)) == 1:
        message = f"{len(scored)} episodes with different answers all earned {scored[0]:g}"
        cure = "if the model does no better than this player, groups have equal rewards and teach nothing"
        yield Finding(rule, "warning", message, f"{cure}: reward a part of the way")
    highest = manifest.environment.max_reward
    if highest is not None and scored and max(scored) > highest:
        message = f"an episode earned {max(scored):g}, and environment.max_reward is {highest:g}"
        yield Finding("no reward is higher than max_reward", "warning", message, "give the highest reward there is")


def _observations_fit(played: Rehearsal, manifest: Manifest, needs: Needs) -> Iterator[Finding]:
    rollout = manifest.rollout
    if any(episode.cut for episode in played.episodes):
        message = f"an observation is longer than rollout.max_observation_chars: {rollout.max_observation_chars}"
        cure = "return less text, or give a larger bound; the model does not see the middle"
        yield Finding("observations fit", "warning", message, cure)
    most = max(episode.read_tokens for episode in played.episodes)
    if rollout.max_context is not None and most + needs.turn_tokens > rollout.max_context:
        message = (
            f"about {most} tokens to read leave no room for an answer in rollout.max_context: {rollout.max_context}"
        )
        yield Finding("observations fit", "warning", message, "give a larger bound, or shorter observations")


def _in_time(played: Rehearsal, manifest: Manifest, needs: Needs) -> Iterator[Finding]:
    del needs
    bound, longest = manifest.environment.request_timeout_s, max(episode.longest_s for episode in played.episodes)
    if bound and longest > bound / 2:
        message = f"a reset or step took {longest:.1f} s of the {bound:g} s that environment.request_timeout_s allows"
        yield Finding("calls end in time", "warning", message, "give a larger bound: in a run the machine is busy")


Rule = Callable[[Rehearsal, Manifest, Needs], Iterator[Finding]]

_RULES: tuple[Rule, ...] = (_members_agree, _none_fails, _they_end, _rewards_differ, _observations_fit, _in_time)


def _figures(played: Rehearsal, needs: Needs | None) -> Iterator[str]:
    episodes, tasks = played.episodes, len(played.groups)
    endings = ", ".join(f"{count} {name}" for name, count in Counter(e.trajectory.ending for e in episodes).items())
    yield f"played   {len(episodes)} episodes of {tasks} tasks with a scripted player, no model: {endings}"
    earned = [episode.trajectory.reward for episode in episodes if episode.trajectory.reward is not None]
    if earned:
        yield f"reward   {_span(earned)} an episode, in {_span([e.trajectory.turns for e in episodes])} turns"
    seconds = [episode.env_seconds for episode in episodes]
    longest = max(episode.longest_s for episode in episodes)
    yield f"time     {_mean(seconds) * 1e3:.3g} ms of environment an episode, {longest * 1e3:.3g} ms the longest call"
    yield (
        f"tokens   about {_span([e.read_tokens for e in episodes])} an episode to read ({BYTES_A_TOKEN} bytes a token; "
        f"no tokenizer was loaded)" + (f", up to {needs.max_turns} x {needs.turn_tokens} to write" if needs else "")
    )
    if played.memory_bytes is not None:
        yield f"memory   {played.memory_bytes / MIB:.2g} MiB of Python an environment"
    if needs is not None:
        yield from _needed(played, needs, episodes)


def _needed(played: Rehearsal, needs: Needs, episodes: Sequence[Rehearsed]) -> Iterator[str]:
    step = needs.groups * needs.group_size
    yield (
        f"a step   {needs.groups} groups x {needs.group_size} episodes = {step}; the run has {needs.steps} steps, "
        f"{needs.steps * step} episodes, {_time(needs.steps * step * _mean([e.env_seconds for e in episodes]))} of "
        "environment"
    )
    what = "sessions on the server (its --max-concurrent-envs)" if needs.remote else "environments at one time"
    held = ""
    if played.memory_bytes is not None:
        held = f"; {needs.sessions * played.memory_bytes / MIB:.2g} MiB"
    yield f"needs    {step} + {needs.evaluated} for evaluation = {needs.sessions} {what}{held}"
    if played.sandbox_mib is not None:
        total = needs.sessions * played.sandbox_mib
        yield f"sandbox  {needs.sessions} sandboxes x {played.sandbox_mib} MiB = {total / 1024:.3g} GiB"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _span(values: Sequence[Any]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _time(seconds: float) -> str:
    return (
        f"{seconds:.2g} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )
