"""Every key of a manifest reaches what it is for."""

import dataclasses
import json
import shutil

import pytest
import torch

from tiltyard.build import env_factory, probe, run_parts, run_plan, turns_factory
from tiltyard.build_dataset import dataset_env, dataset_plan
from tiltyard.manifest import ALGORITHM_SECTIONS, LoraSection, RolloutSection, load_manifest
from tiltyard.manifest.keys import RENAMED, leaf_paths
from tiltyard.manifest.package_names import named_packages
from tiltyard.models.trainable import LoraSettings, decoder_layers
from tiltyard.planning import placement
from tiltyard.report.loggers import make_loggers
from tiltyard.rollout.limits import Limits
from tiltyard.testing.tokenizer import byte_tokenizer
from tiltyard.train.algorithms import ALGORITHMS, GRPO
from tiltyard.train.examples import RowSettings
from tiltyard.train.forward import unwrapped
from tiltyard.train.observer import SilentObserver
from tiltyard.train.run_folder import RunFolder
from tiltyard.train.supervised_algorithms import DPO, SFT

ENV = """
class Env:
    dataset_size = 9
    def __init__(self, size):
        self.size = size
    def reset(self, seed=None, row_index=None, evaluation=None):
        return "x" * 900, {}
    def step(self, action):
        return "", 1.0, True, False, {}
"""

OTHER = {
    "environment": "{env_type: rollout, entrypoint: 'env.py:Env', env_config: {size: 5, system_prompt: Hi}, "
    "env_packages: {pip: [tiltyard-none==1]}, "
    "max_turns: 4, max_reward: 2.5, chat_template_kwargs: {shout: true}, request_timeout_s: 12}",
    "model": "{name: model, dtype: bfloat16, device: cpu, tool_parser: react, train: lora, "
    "lora: {rank: 3, alpha: 5, targets: [q_proj]}, gradient_checkpointing: true}",
    "algorithm": "{name: GRPO, group_size: 3, kl_coef: 0.2}",
    "rollout": "{temperature: 0.7, top_p: 1.0, top_k: 0, max_tokens_per_turn: 11, length_reward: -2, max_context: 900, "
    "max_seconds: 50, max_tool_calls: 6, max_observation_chars: 500, linger_s: 2}",
    "training": "{steps: 8, batch_size: 2, learning_rate: 2e-4, warmup_steps: 3, weight_decay: 0.1, "
    "max_grad_norm: 0.5, schedule: cosine, schedule_end: 0.1, pack_tokens: 99, loggers: [tensorboard], "
    "seed: 13, save_every: 4, keep_checkpoints: 5, asynchronous: true, truncated: zero, threads: 1, "
    "eval: {tasks: 7, every: 2, before: false, after: false, temperature: 0}}",
}


@pytest.fixture
def built(write_manifest, model_folder, tmp_path):
    """Everything that a manifest with no default in it builds."""
    shutil.copytree(model_folder, tmp_path / "model")
    template = tmp_path / "model" / "chat_template.jinja"
    template.write_text("{% if shout %}{{ '!!!' }}{% endif %}" + template.read_text())
    path = write_manifest(ENV, **OTHER)
    threads = torch.get_num_threads()
    manifest = load_manifest(path)
    facts = probe(manifest.environment, env_factory(manifest.environment))
    with RunFolder.create(tmp_path / "run", "") as folder:
        parts = run_parts(manifest, facts, folder, SilentObserver())
    yield manifest, parts, run_plan(manifest, facts)
    parts.collector.close()
    torch.set_num_threads(threads)


def test_every_key_reaches_its_consumer(built):
    """Each key, set to something other than its default, is found where it works; a new key must be added here."""
    manifest, parts, plan = built
    collector, learner = parts.collector, parts.learner
    turns = collector._slots.envs[0]
    limits, adapter = collector._rollout.limits, learner.trainable.model.peft_config["default"]
    opening = collector._rollout.renderer.opening([{"role": "user", "content": "Hi"}])
    found = {
        "environment.env_type": manifest.environment.env_type,
        "environment.entrypoint": f"{type(turns._env).__name__}",
        "environment.env_config": (turns._env.size, turns._env.system_prompt),
        "environment.env_packages": named_packages(manifest.environment),
        "environment.max_turns": limits.max_turns,
        "environment.max_reward": plan.max_reward,
        "environment.chat_template_kwargs": bytes(opening[:3]),
        "environment.request_timeout_s": limits.step_timeout_s,
        "model.name": manifest.model.name.rpartition("/")[2],
        "model.dtype": next(learner.trainable.model.parameters()).dtype,
        "model.device": next(learner.trainable.model.parameters()).device.type,
        "model.tool_parser": collector._rollout.renderer.family.name,
        "model.train": type(learner.trainable).__name__,
        "model.gradient_checkpointing": decoder_layers(unwrapped(learner.trainable.model))[0].forward.func.__module__,
        "model.lora.rank": adapter.r,
        "model.lora.alpha": adapter.lora_alpha,
        "model.lora.targets": adapter.target_modules,
        "algorithm": (learner.algorithm, collector.group_size),
        "rollout.temperature": (parts.policy.sampling.temperature, learner.sampling.temperature),
        "rollout.top_p": (parts.policy.sampling.top_p, learner.sampling.top_p),
        "rollout.top_k": (parts.policy.sampling.top_k, learner.sampling.top_k),
        "rollout.max_tokens_per_turn": limits.max_tokens_per_turn,
        "rollout.length_reward": limits.length_reward,
        "rollout.max_context": limits.max_context,
        "rollout.max_seconds": limits.max_seconds,
        "rollout.max_tool_calls": limits.max_tool_calls,
        "rollout.max_observation_chars": turns._max_chars,
        "rollout.linger_s": collector._rollout.patience.linger_s,
        "training.steps": plan.schedule.steps,
        "training.batch_size": (collector.batch_size, collector._assigner._batch_size),
        "training.learning_rate": learner.settings.learning_rate,
        "training.warmup_steps": learner.settings.warmup_steps,
        "training.weight_decay": learner.settings.weight_decay,
        "training.max_grad_norm": learner.settings.max_grad_norm,
        "training.schedule": (learner.settings.schedule, learner.settings.total_steps),
        "training.schedule_end": learner.settings.end_share,
        "training.pack_tokens": learner._asking.pack_tokens,
        "training.loggers": [logger.name for logger in make_loggers(manifest.training.loggers)],
        "training.seed": (collector._rollout.seed, collector._assigner._seed),
        "training.save_every": plan.schedule.save_every,
        "training.keep_checkpoints": plan.schedule.keep_checkpoints,
        "training.asynchronous": parts.sampled is not parts.model,
        "training.truncated": plan.truncated,
        "training.threads": torch.get_num_threads(),
        "training.eval.tasks": len(plan.tasks),
        "training.eval.every": plan.schedule.eval_every,
        "training.eval.before": plan.schedule.eval_before,
        "training.eval.after": plan.schedule.eval_after,
        "training.eval.temperature": plan.eval_sampling.temperature,
    }
    expected = {
        "environment.env_type": "rollout",
        "environment.entrypoint": "Env",
        "environment.env_config": (5, "Hi"),
        "environment.env_packages": ("tiltyard-none==1",),
        "environment.max_turns": 4,
        "environment.max_reward": 2.5,
        "environment.chat_template_kwargs": b"!!!",
        "environment.request_timeout_s": 12.0,
        "model.name": "model",
        "model.dtype": torch.bfloat16,
        "model.device": "cpu",
        "model.tool_parser": "react",
        "model.train": "AdapterModel",
        "model.gradient_checkpointing": "tiltyard.models.recompute",
        "model.lora.rank": 3,
        "model.lora.alpha": 5.0,
        "model.lora.targets": {"q_proj"},
        "algorithm": (GRPO(group_size=3, kl_coef=0.2, old_logprobs="trainer", sampler_cap=2.0), 3),
        "rollout.temperature": (0.7, 0.7),
        "rollout.top_p": (1.0, 1.0),
        "rollout.top_k": (0, 0),
        "rollout.max_tokens_per_turn": 11,
        "rollout.length_reward": -2.0,
        "rollout.max_context": 900,
        "rollout.max_seconds": 50.0,
        "rollout.max_tool_calls": 6,
        "rollout.max_observation_chars": 500,
        "rollout.linger_s": 2.0,
        "training.steps": 8,
        "training.batch_size": (2, 2),
        "training.learning_rate": 2e-4,
        "training.warmup_steps": 3,
        "training.weight_decay": 0.1,
        "training.max_grad_norm": 0.5,
        "training.schedule": ("cosine", 8),
        "training.schedule_end": 0.1,
        "training.pack_tokens": 99,
        "training.loggers": ["tensorboard"],
        "training.seed": (13, 13),
        "training.save_every": 4,
        "training.keep_checkpoints": 5,
        "training.asynchronous": True,
        "training.truncated": "zero",
        "training.threads": 1,
        "training.eval.tasks": 7,
        "training.eval.every": 2,
        "training.eval.before": False,
        "training.eval.after": False,
        "training.eval.temperature": 0.0,
    }
    assert found == expected
    known = {leaf for leaf in leaf_paths() if not leaf.startswith("algorithm.")}
    assert set(found) - {"algorithm"} | OF_A_SERVER | OF_OBSERVATIONS | OF_A_DATASET | OF_WORKERS == known


OF_WORKERS = {"rollout.backend", "rollout.workers", "rollout.ray_address"}


def test_every_key_of_workers_reaches_them(write_manifest, tmp_path):
    """The environments of a run live on so many workers, which keep its deadline; an address is that of a cluster."""
    path = write_manifest(ENV.replace(", size", ", size=1"), rollout="{backend: process, workers: 2}")
    manifest = load_manifest(path, ["environment.request_timeout_s=9"])
    facts = probe(manifest.environment, env_factory(manifest.environment))
    with RunFolder.create(tmp_path / "run", "") as folder:
        collector = run_parts(manifest, facts, folder, SilentObserver()).collector
    pool = collector._slots.pool
    assert (pool.pool_size, pool.num_workers, pool._step_timeout_s) == (8, 2, 9.0)
    assert collector._rollout.limits.step_timeout_s is None
    collector.close()
    there = placement(load_manifest(path, ["rollout={backend: ray, workers: 3, ray_address: auto}"]))
    assert (there.pool_backend, there.workers, there.ray.address) == ("ray", 3, "auto")


SHARED = {
    "kl_coef": 0.2,
    "kl_estimator": "k2",
    "kl_in": "reward",
    "loss_normaliser": "constant",
    "constant_length": 77,
    "epochs": 2,
    "minibatches": 3,
    "old_logprobs": "trainer",
    "sampler_cap": 1.5,
    "entropy_coef": 0.01,
    "overlong_penalty": 0.5,
    "overlong_from": 10,
    "overlong_until": 20,
    "group_size": 3,
    "advantage_granularity": "turn",
    "clip_low": 0.1,
    "clip_high": 0.3,
}
RELATIVE = SHARED | {"turn_discount": 0.5, "scale_rewards": "batch", "zero_variance": "drop", "resample_rounds": 2}
RETURNS = SHARED | {"discount": 0.9}
OF_ALGORITHMS = {
    "GRPO": RELATIVE,
    "GSPO": RELATIVE,
    "CISPO": RELATIVE,
    "LLMPPO": RETURNS
    | {
        "normalise_advantages": False,
        "gae_lambda": 0.5,
        "value_coef": 0.1,
        "value_clip": 0.0,
        "value_learning_rate": 0.01,
        "value_trains_model": True,
    },
    "LLMREINFORCE": {name: value for name, value in RETURNS.items() if not name.startswith("clip")}
    | {"normalise_advantages": True, "baseline": "batch", "ratio_cap": 3.0},
}
"""The keys of each algorithm with something other than their default."""


ROW_KEYS = {"max_length": 99, "too_long": "cut", "plain_text": True}
OF_ROW_ALGORITHMS = {
    "SFT": ROW_KEYS | {"turns": "last", "loss_normaliser": "sequence"},
    "DPO": ROW_KEYS | {"loss": "sigmoid", "beta": 0.3, "label_smoothing": 0.1, "nll_coef": 0.5, "reference_free": True},
}
"""Those of the algorithms that learn from rows."""


@pytest.mark.parametrize(("name", "algorithm"), [("SFT", SFT), ("DPO", DPO)])
def test_every_key_of_an_algorithm_of_rows_reaches_its_settings(name, algorithm):
    """A key says either how rows become tokens, or what is learned."""
    given = OF_ROW_ALGORITHMS[name]
    section = ALGORITHM_SECTIONS[name](**given)
    own = {field.name for field in dataclasses.fields(algorithm)}
    assert section.settings() == algorithm(**{key: value for key, value in given.items() if key in own})
    assert section.row_settings() == {key: value for key, value in given.items() if key not in own}
    assert set(given) | {"name"} == set(type(section).model_fields)
    assert RowSettings(**ALGORITHM_SECTIONS[name]().row_settings()) == RowSettings()


OF_A_DATASET = {
    *("environment.dataset", "environment.dataset_split", "environment.columns", "environment.prompt_template"),
    *("environment.rubric_file_path", "environment.rubric_name", "environment.train_test_split"),
    *("environment.objective", "environment.response_column", "training.epochs"),
}


def test_every_key_of_rows_reaches_their_run(write_manifest, tmp_path):
    """Which rows, under which names, with which prompt, how many held out, and how long the run goes on."""
    rows = [{"ask": f"q{i}", "said": f"a{i}"} for i in range(10)]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = "{env_type: dataset, objective: sft, dataset: ./rows, dataset_split: dev, columns: {ask: question}, "
    given += "prompt_template: {user_0: 'Now {question}'}, response_column: said, train_test_split: 0.6}"
    training = "{epochs: 3, batch_size: 4, pack_tokens: 700, seed: 5, learning_rate: 1e-3, eval: {tasks: 2, every: 3}}"
    manifest = load_manifest(write_manifest(environment=given, algorithm="{}", rollout="{}", training=training))
    env = dataset_env(manifest, byte_tokenizer())
    plan = dataset_plan(manifest, env)
    assert (len(env.train), len(env.held_out), env.objective) == (6, 4, "sft")
    assert "user\nNow q" in env.shown(env.train[0])
    assert "⟦a" in env.shown(env.train[0])
    assert (plan.schedule.steps, plan.batch_size, plan.eval_rows, plan.schedule.eval_every) == (5, 4, 2, 3)
    assert (plan.pack_tokens, plan.seed, plan.optimiser.learning_rate) == (700, 5, 1e-3)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_key_of_an_algorithm_reaches_its_settings(write_manifest, name):
    """The section of each algorithm makes that algorithm, with every key; a new key must be added here."""
    given = OF_ALGORITHMS[name]
    section = load_manifest(write_manifest(algorithm=json.dumps({"name": name, **given}))).algorithm
    default = ALGORITHM_SECTIONS[name]()
    assert section.settings() == ALGORITHMS[name](**given)
    assert [key for key in given if getattr(section, key) == getattr(default, key)] == []
    assert set(given) | {"name"} == set(ALGORITHM_SECTIONS[name].model_fields)
    assert set(given) == {field.name for field in dataclasses.fields(ALGORITHMS[name])}


OF_A_SERVER = {"environment.env_url", "environment.mcp_tool", "environment.action_field"}
OF_OBSERVATIONS = {"environment.observation_field", "environment.observation_processor"}


def test_every_key_of_a_server_reaches_its_client(write_manifest, tmp_path):
    """Those that do not go with an entrypoint; nothing is dialled."""
    (tmp_path / "shown.py").write_text("def board(payload):\n    return str(payload)\n")
    given = "{env_type: rollout, env_url: 'http://host/env', mcp_tool: play, action_field: move, max_turns: 3, "
    given += "observation_field: board, observation_processor: 'shown.py:board', request_timeout_s: 7}"
    manifest = load_manifest(write_manifest(environment=given))
    turns = turns_factory(manifest)()
    client = turns._env
    assert (client.url, client._mcp_tool, client._field) == ("ws://host/env/ws", "play", "move")
    assert client._session.options.message_timeout_s == 7.0
    assert (turns._field, turns._processor(3)) == ("board", "3")


def test_the_manifests_defaults_are_those_of_what_it_sets():
    """A key that is left out means the same as an argument that is left out."""
    assert {name: section().settings() for name, section in ALGORITHM_SECTIONS.items()} == {
        name: algorithm() for name, algorithm in {**ALGORITHMS, "SFT": SFT, "DPO": DPO}.items()
    }
    assert LoraSettings(**LoraSection().model_dump()) == LoraSettings()
    shared = RolloutSection().model_dump(include=set(Limits.__slots__))
    assert shared == {name: getattr(Limits(), name) for name in shared}


def test_advice_names_keys_that_there_are():
    """What a message sends a reader to exists."""
    known = set(leaf_paths())
    targets = {target.removesuffix(".system_prompt") for target in RENAMED.values()}
    assert targets <= known
