"""From a manifest to episodes that are played and not learned from, by a local model or by one behind a server."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tiltyard._optional import require
from tiltyard.build import (
    EnvFacts,
    env_factory,
    local_model,
    preflight_manifest,
    probe,
    turns_factory,
)
from tiltyard.errors import ConfigurationError, ManifestError
from tiltyard.manifest import Manifest
from tiltyard.manifest.algorithms import PolicyGradientSection
from tiltyard.manifest.resuming import kept_request
from tiltyard.planning import EVAL_TASKS, held_out_tasks, limits, placement, sampling
from tiltyard.policies.base import Sampling
from tiltyard.report.page import leave_report
from tiltyard.rollout.placed_slots import env_slots
from tiltyard.rollout.slots import EnvSlots
from tiltyard.rollout.tasks import TaskAssigner
from tiltyard.train.episodes import EpisodeObserver, EpisodePlaces, EpisodePlan, play_episodes
from tiltyard.train.players import LocalPlayer, Player, ServedPlayer, WorkersPlayer
from tiltyard.train.run_folder import RunFolder
from tiltyard.types import Task

# What needs torch or a client is imported by the functions that need it.
# ruff: noqa: PLC0415

LIVE_EPISODES = 64
"""Episodes that are played at one time by a served model, where nothing else is said."""

Split = Literal["train", "held-out"]
TokenIds = Literal["vllm", "llama.cpp"]
LLAMA_CPP: TokenIds = "llama.cpp"

_SERVER_FIELDS = ("url", "model", "token_ids", "timeout_s")
_MAY_GROW = ("tasks", "samples")
_MAY_CHANGE = ("url", "timeout_s", "concurrency")


@dataclass(frozen=True, slots=True)
class Server:
    """The server that a model is behind.

    Attributes:
        url: Its address, as far as `/v1`.
        model: The model's name there.
        token_ids: How it is asked for token ids (see `tiltyard.policies.openai.OpenAI`).
        timeout_s: Seconds for one answer, all attempts included.
    """

    url: str
    model: str
    token_ids: TokenIds | None = None
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be played, beside what the manifest says.

    Attributes:
        split: Whose tasks.
        tasks: How many; None takes those of the manifest's evaluation, or up to `EVAL_TASKS` for the training tasks.
        samples: Episodes of each task.
        server: Who plays; None is the manifest's model, in this process.
        checkpoint: A run folder or one of its checkpoints, whose weights the manifest's model gets.
        concurrency: How many episodes are played at one time; None takes `LIVE_EPISODES` with a server, and one batch
            of training without.
    """

    split: Split = "held-out"
    tasks: int | None = None
    samples: int = 1
    server: Server | None = None
    checkpoint: str | None = None
    concurrency: int | None = None

    def __post_init__(self) -> None:
        for name in ("samples", "tasks", "concurrency"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} must be >= 1, got {value!r}")
        if self.server is not None and self.checkpoint is not None:
            raise ConfigurationError("a checkpoint is for the manifest's model; a server plays with its own weights")


def play_manifest(manifest: Manifest, folder: RunFolder, request: Request, observer: EpisodeObserver) -> dict[str, Any]:
    """Play what is missing of the request in the folder; returns what the folder's `summary.json` has.

    Raises:
        ConfigurationError: A part cannot be made as it was asked for.
        CheckpointError: The checkpoint does not fit the manifest.
        MissingExtraError: The extra `api`, or `train` without a server, is not installed.
    """
    with folder:
        try:
            facts = probe(manifest.environment, env_factory(manifest.environment))
            tasks = _tasks(manifest, facts, request)
            stage = (_served if request.server else _local)(manifest, facts, request, len(tasks) * request.samples)
        except BaseException:
            folder.discard()
            raise
        folder.write_state(request=asdict(replace(request, tasks=len(tasks))))
        plan = EpisodePlan(
            phase="eval" if request.split == "held-out" else "rollout",
            tasks=tuple(tasks),
            samples=request.samples,
            step=stage.step,
            temperature=_sampled_from(manifest, request).temperature,
            max_reward=manifest.environment.max_reward,
        )
        summary = play_episodes(stage.player, stage.places, plan, folder, observer)
    leave_report(folder.path)
    return summary


def resumed_request(run: str | Path, given: Mapping[str, Any]) -> Request:
    """Return the request that a folder was begun with, with what is given now.

    There may be more tasks and samples than before, another address of the server, another concurrency and another
    time-out. What decides what the episodes are may not change.

    Args:
        run: The folder.
        given: Fields of `Request` and of `Server`, only those that are given.

    Raises:
        ConfigurationError: The folder holds no such episodes, its `run.json` is damaged, or something else differs.
    """
    kept = kept_request(run)
    if kept is None:
        raise ConfigurationError(f"{Path(run).absolute()} holds no episodes of `tiltyard eval` or `tiltyard rollout`")
    before = {**kept, **(kept["server"] or {})}
    for name, value in given.items():
        grows = name in _MAY_GROW and before[name] is not None and value >= before[name]
        if name not in _MAY_CHANGE and not grows and value != before.get(name):
            more = " and may only grow" if name in _MAY_GROW else ""
            raise ConfigurationError(
                f"{Path(run)} was begun with {name} {before.get(name)!r}{more}, got {value!r}; resume without it, or "
                "begin a new folder"
            )
    return new_request({name: value for name, value in {**before, **given}.items() if value is not None})


def new_request(given: Mapping[str, Any]) -> Request:
    """Return a request of fields of `Request` and of `Server`, those that are not given at their defaults.

    Raises:
        ConfigurationError: A value cannot be, or of a server's address and its model only one is given.
    """
    of_server = {name: given[name] for name in _SERVER_FIELDS if name in given}
    server = None
    if of_server:
        if "url" not in of_server or "model" not in of_server:
            raise ConfigurationError("a served model needs both --api URL and --model NAME, its name on the server")
        server = Server(**of_server)
    own = {name: value for name, value in given.items() if name not in (*_SERVER_FIELDS, "server")}
    return Request(**own, server=server)


@dataclass(frozen=True, slots=True)
class _Stage:
    """Who plays and where.

    Attributes:
        player: Plays.
        places: What is closed at the end.
        step: For how many steps the model was trained.
    """

    player: Player
    places: EpisodePlaces
    step: int = 0


def _tasks(manifest: Manifest, facts: EnvFacts, request: Request) -> list[Task]:
    if request.split == "held-out":
        if facts.held_out_rows == 0 or not (tasks := held_out_tasks(manifest, facts, request.tasks)):
            raise ManifestError(_no_tasks(manifest, facts))
        return tasks
    count = request.tasks or min(EVAL_TASKS, facts.rows or EVAL_TASKS)
    return TaskAssigner(facts.rows, count, seed=manifest.training.seed).next()


def _no_tasks(manifest: Manifest, facts: EnvFacts) -> str:
    """Why there is nothing to evaluate on, and what to do."""
    if facts.held_out_rows != 0:
        return (
            "training.eval.tasks is 0, so that there is nothing to evaluate on; give --tasks, or another number there"
        )
    section = manifest.environment
    split = f"set environment.train_test_split below {section.train_test_split:g}, or " if section.dataset else ""
    return f"no rows are held out to evaluate on; {split}play the training rows, with `tiltyard rollout --split train`"


def _local(manifest: Manifest, facts: EnvFacts, request: Request, episodes: int) -> _Stage:
    """The manifest's model, in this process, wherever the environments are."""
    model = local_model(manifest, facts)
    from tiltyard.rollout.batched import BatchedRollout
    from tiltyard.train.checkpoint import load_weights

    step = 0 if request.checkpoint is None else load_weights(request.checkpoint, model.trainable).step
    rollout = BatchedRollout(
        model.policy(_sampled_from(manifest, request)),
        model.renderer,
        placement(manifest).limits(limits(manifest, facts)),
        seed=manifest.training.seed,
        max_live=_concurrency(manifest, request),
        linger_s=manifest.rollout.linger_s,
    )
    slots = _slots(manifest, facts, request, episodes)
    return _Stage(LocalPlayer(rollout, model.trainable.sampling_weights), slots, step)


def _served(manifest: Manifest, facts: EnvFacts, request: Request, episodes: int) -> _Stage:
    """The model behind the server; where there are workers, they play whole episodes with it."""
    server = request.server
    assert server is not None
    require("aiohttp", "api")
    from tiltyard.policies.openai import OpenAI
    from tiltyard.rollout.concurrent import ConcurrentRollout

    preflight_manifest(manifest, facts)
    concurrency = _concurrency(manifest, request)
    policy = OpenAI(
        server.model,
        server.url,
        sampling=_fields(manifest, request),
        token_ids=server.token_ids,
        timeout_s=server.timeout_s,
        max_connections=concurrency,
    )
    seed, bounds, place = manifest.training.seed, limits(manifest, facts), placement(manifest)
    if place.remote:
        from tiltyard.rollout.rollout_workers import RolloutWorkers

        live = min(concurrency, episodes)
        make = turns_factory(manifest)
        workers = RolloutWorkers(make, policy, bounds, placement=place, concurrency=live, seed=seed)
        return _Stage(WorkersPlayer(workers), workers)
    rollout = ConcurrentRollout(policy, bounds, concurrency=concurrency, seed=seed)
    return _Stage(ServedPlayer(rollout), _slots(manifest, facts, request, episodes))


def _slots(manifest: Manifest, facts: EnvFacts, request: Request, episodes: int) -> EnvSlots:
    size = min(_concurrency(manifest, request), episodes)
    timeout_s = limits(manifest, facts).step_timeout_s
    return env_slots(turns_factory(manifest), size, placement(manifest), timeout_s=timeout_s)


def _fields(manifest: Manifest, request: Request) -> dict[str, Any]:
    """What every request to the server has beside the conversation.

    `top_k` is not part of OpenAI's API and is sent only where it cuts something off or the server is known to take
    it; llama.cpp cuts off by itself what it is not told to keep.
    """
    server, sampled_from = request.server, _sampled_from(manifest, request)
    fields: dict[str, Any] = {"temperature": sampled_from.temperature, "top_p": sampled_from.top_p}
    if sampled_from.top_k or (server and server.token_ids):
        fields["top_k"] = sampled_from.top_k
    if server and server.token_ids == LLAMA_CPP:
        fields["min_p"] = 0.0
    if manifest.environment.chat_template_kwargs:
        fields["chat_template_kwargs"] = manifest.environment.chat_template_kwargs
    return fields


def _sampled_from(manifest: Manifest, request: Request) -> Sampling:
    return sampling(manifest, evaluation=request.split == "held-out")


def _concurrency(manifest: Manifest, request: Request) -> int:
    if request.concurrency is not None:
        return request.concurrency
    algorithm = manifest.algorithm
    assert isinstance(algorithm, PolicyGradientSection), "the manifest was checked: episodes are played"
    return LIVE_EPISODES if request.server else manifest.training.batch_size * algorithm.group_size
