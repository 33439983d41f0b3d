"""Tiltyard: language models train in environments. See `docs/` and the README."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiltyard.build import LocalModel
    from tiltyard.envs.agent.env import AgentEnv
    from tiltyard.envs.base import Env, TextEnv, TurnEnv
    from tiltyard.envs.check import check_env
    from tiltyard.envs.findings import CheckReport
    from tiltyard.envs.observation import process_observation
    from tiltyard.envs.openenv.client import OpenEnvClient
    from tiltyard.envs.openenv.embedded import OpenEnv
    from tiltyard.envs.openenv.remote import RemoteEnvClient
    from tiltyard.envs.pool.adapter import EnvPoolAdapter
    from tiltyard.envs.pool.layout import DeviceMesh
    from tiltyard.envs.pool.pool import EnvPool
    from tiltyard.envs.pool.ray_session import RayOptions
    from tiltyard.envs.pool.shard import WorkerInfo
    from tiltyard.envs.qa import QADatasetEnv
    from tiltyard.envs.text_turns import TextTurns
    from tiltyard.envs.tool import EnvTool
    from tiltyard.envs.tool_turns import ToolTurns
    from tiltyard.envs.turns import as_turns
    from tiltyard.errors import (
        ActionRefusedError,
        CheckpointError,
        ConfigurationError,
        EnvError,
        EnvTimeoutError,
        EpisodeOverError,
        GroupMismatchError,
        LostSessionError,
        ManifestError,
        MissingExtraError,
        PolicyError,
        PromptTooLongError,
        ResetNeededError,
        RolloutError,
        RowsNotFoundError,
        ServerFullError,
        TemplateError,
        TiltyardError,
        ToolCrashError,
        ToolError,
        TranscriptError,
        WorkerLostError,
    )
    from tiltyard.export import export_run
    from tiltyard.manifest import Manifest, load_manifest
    from tiltyard.models.loading import LoadedModel, load_model
    from tiltyard.models.trainable import LoraSettings, make_trainable
    from tiltyard.policies.base import AsyncPolicy, Policy, Sampled, Sampling, TokenPolicy, TokenRequest
    from tiltyard.policies.hf import HFPolicy
    from tiltyard.policies.openai import OpenAI
    from tiltyard.rewards import Gate, Rubric, Sequential, WeightedSum
    from tiltyard.rollout.api_multi_turn import APIMultiTurnRollout
    from tiltyard.rollout.batched import BatchedRollout, Job
    from tiltyard.rollout.collector import RolloutCollector
    from tiltyard.rollout.concurrent import ConcurrentRollout
    from tiltyard.rollout.episode import episode
    from tiltyard.rollout.groups import Group
    from tiltyard.rollout.harness import RolloutHarness
    from tiltyard.rollout.in_process import InProcessEnvClient
    from tiltyard.rollout.jobs import EpisodeOrder
    from tiltyard.rollout.judge import LLMJudge
    from tiltyard.rollout.limits import Limits
    from tiltyard.rollout.multi_turn import MultiTurnRollout
    from tiltyard.rollout.outcome import ENDINGS, Ending
    from tiltyard.rollout.placement import Placement
    from tiltyard.rollout.preflight import PreflightReport, preflight
    from tiltyard.rollout.rollout_workers import RolloutWorkers
    from tiltyard.rollout.scoring import score_batch
    from tiltyard.rollout.tasks import TaskAssigner, evaluation_tasks
    from tiltyard.rollout.trajectory import Trajectory
    from tiltyard.rows import Rows, RowSplit, load_rows, split_rows
    from tiltyard.sandbox.server import LocalSandboxServer
    from tiltyard.serving.place import ServerReport
    from tiltyard.serving.server import EnvServer, resolve_env
    from tiltyard.tokens.ledger import Ledger
    from tiltyard.tokens.renderer import Renderer, make_renderer
    from tiltyard.tokens.transcript import Transcript
    from tiltyard.tools.base import Tool, tool
    from tiltyard.tools.manager import ToolManager
    from tiltyard.tools.mcp import McpServer, McpTools, mcp_factory, mcp_tools
    from tiltyard.train.algorithms import CISPO, GRPO, GSPO, LLMPPO, LLMREINFORCE
    from tiltyard.train.batch import Batch, build_batch
    from tiltyard.train.dataset_env import DatasetEnv
    from tiltyard.train.examples import RowSettings
    from tiltyard.train.learner import Learner
    from tiltyard.train.optimiser import OptimiserSettings
    from tiltyard.train.supervised_algorithms import DPO, SFT
    from tiltyard.training import train_llm_rollout
    from tiltyard.training_rows import train_llm_dataset
    from tiltyard.types import FinishReason, Message, Prompt, Reply, StepResult, Task, ToolCall, ToolSchema, Turn

__version__ = "0.1.0"

# Where each public name lives. It is imported when it is first used: `import tiltyard` loads nothing heavy.
_HOME = {
    "ActionRefusedError": "tiltyard.errors",
    "AgentEnv": "tiltyard.envs.agent.env",
    "APIMultiTurnRollout": "tiltyard.rollout.api_multi_turn",
    "AsyncPolicy": "tiltyard.policies.base",
    "Batch": "tiltyard.train.batch",
    "BatchedRollout": "tiltyard.rollout.batched",
    "CheckReport": "tiltyard.envs.findings",
    "CheckpointError": "tiltyard.errors",
    "ConcurrentRollout": "tiltyard.rollout.concurrent",
    "ConfigurationError": "tiltyard.errors",
    "DeviceMesh": "tiltyard.envs.pool.layout",
    "DatasetEnv": "tiltyard.train.dataset_env",
    "DPO": "tiltyard.train.supervised_algorithms",
    "ENDINGS": "tiltyard.rollout.outcome",
    "Ending": "tiltyard.rollout.outcome",
    "Env": "tiltyard.envs.base",
    "EnvError": "tiltyard.errors",
    "EnvPool": "tiltyard.envs.pool.pool",
    "EnvPoolAdapter": "tiltyard.envs.pool.adapter",
    "EnvServer": "tiltyard.serving.server",
    "EnvTimeoutError": "tiltyard.errors",
    "EnvTool": "tiltyard.envs.tool",
    "EpisodeOrder": "tiltyard.rollout.jobs",
    "EpisodeOverError": "tiltyard.errors",
    "FinishReason": "tiltyard.types",
    "Gate": "tiltyard.rewards",
    "CISPO": "tiltyard.train.algorithms",
    "GRPO": "tiltyard.train.algorithms",
    "GSPO": "tiltyard.train.algorithms",
    "LLMPPO": "tiltyard.train.algorithms",
    "LLMREINFORCE": "tiltyard.train.algorithms",
    "Group": "tiltyard.rollout.groups",
    "GroupMismatchError": "tiltyard.errors",
    "HFPolicy": "tiltyard.policies.hf",
    "InProcessEnvClient": "tiltyard.rollout.in_process",
    "Job": "tiltyard.rollout.batched",
    "LLMJudge": "tiltyard.rollout.judge",
    "Learner": "tiltyard.train.learner",
    "Ledger": "tiltyard.tokens.ledger",
    "Limits": "tiltyard.rollout.limits",
    "LoadedModel": "tiltyard.models.loading",
    "LocalModel": "tiltyard.build",
    "LoraSettings": "tiltyard.models.trainable",
    "LocalSandboxServer": "tiltyard.sandbox.server",
    "LostSessionError": "tiltyard.errors",
    "Manifest": "tiltyard.manifest",
    "ManifestError": "tiltyard.errors",
    "McpServer": "tiltyard.tools.mcp",
    "McpTools": "tiltyard.tools.mcp",
    "Message": "tiltyard.types",
    "MissingExtraError": "tiltyard.errors",
    "MultiTurnRollout": "tiltyard.rollout.multi_turn",
    "OpenAI": "tiltyard.policies.openai",
    "OpenEnv": "tiltyard.envs.openenv.embedded",
    "OpenEnvClient": "tiltyard.envs.openenv.client",
    "OptimiserSettings": "tiltyard.train.optimiser",
    "Placement": "tiltyard.rollout.placement",
    "Policy": "tiltyard.policies.base",
    "PolicyError": "tiltyard.errors",
    "PreflightReport": "tiltyard.rollout.preflight",
    "Prompt": "tiltyard.types",
    "PromptTooLongError": "tiltyard.errors",
    "RayOptions": "tiltyard.envs.pool.ray_session",
    "QADatasetEnv": "tiltyard.envs.qa",
    "RemoteEnvClient": "tiltyard.envs.openenv.remote",
    "Renderer": "tiltyard.tokens.renderer",
    "Reply": "tiltyard.types",
    "ResetNeededError": "tiltyard.errors",
    "RolloutCollector": "tiltyard.rollout.collector",
    "RolloutError": "tiltyard.errors",
    "RolloutHarness": "tiltyard.rollout.harness",
    "RolloutWorkers": "tiltyard.rollout.rollout_workers",
    "RowSettings": "tiltyard.train.examples",
    "Rubric": "tiltyard.rewards",
    "RowSplit": "tiltyard.rows",
    "Rows": "tiltyard.rows",
    "RowsNotFoundError": "tiltyard.errors",
    "Sampled": "tiltyard.policies.base",
    "Sampling": "tiltyard.policies.base",
    "Sequential": "tiltyard.rewards",
    "ServerFullError": "tiltyard.errors",
    "ServerReport": "tiltyard.serving.place",
    "SFT": "tiltyard.train.supervised_algorithms",
    "StepResult": "tiltyard.types",
    "Task": "tiltyard.types",
    "TaskAssigner": "tiltyard.rollout.tasks",
    "TemplateError": "tiltyard.errors",
    "TextEnv": "tiltyard.envs.base",
    "TextTurns": "tiltyard.envs.text_turns",
    "TiltyardError": "tiltyard.errors",
    "TokenPolicy": "tiltyard.policies.base",
    "TokenRequest": "tiltyard.policies.base",
    "Tool": "tiltyard.tools.base",
    "ToolCall": "tiltyard.types",
    "ToolCrashError": "tiltyard.errors",
    "ToolError": "tiltyard.errors",
    "ToolManager": "tiltyard.tools.manager",
    "ToolSchema": "tiltyard.types",
    "ToolTurns": "tiltyard.envs.tool_turns",
    "Trajectory": "tiltyard.rollout.trajectory",
    "Transcript": "tiltyard.tokens.transcript",
    "TranscriptError": "tiltyard.errors",
    "Turn": "tiltyard.types",
    "TurnEnv": "tiltyard.envs.base",
    "WeightedSum": "tiltyard.rewards",
    "as_turns": "tiltyard.envs.turns",
    "build_batch": "tiltyard.train.batch",
    "check_env": "tiltyard.envs.check",
    "episode": "tiltyard.rollout.episode",
    "evaluation_tasks": "tiltyard.rollout.tasks",
    "export_run": "tiltyard.export",
    "load_manifest": "tiltyard.manifest",
    "load_model": "tiltyard.models.loading",
    "load_rows": "tiltyard.rows",
    "make_renderer": "tiltyard.tokens.renderer",
    "make_trainable": "tiltyard.models.trainable",
    "mcp_factory": "tiltyard.tools.mcp",
    "mcp_tools": "tiltyard.tools.mcp",
    "preflight": "tiltyard.rollout.preflight",
    "process_observation": "tiltyard.envs.observation",
    "resolve_env": "tiltyard.serving.server",
    "score_batch": "tiltyard.rollout.scoring",
    "split_rows": "tiltyard.rows",
    "tool": "tiltyard.tools.base",
    "train_llm_dataset": "tiltyard.training_rows",
    "train_llm_rollout": "tiltyard.training",
    "WorkerInfo": "tiltyard.envs.pool.shard",
    "WorkerLostError": "tiltyard.errors",
}

__all__ = [
    "CISPO",
    "DPO",
    "ENDINGS",
    "GRPO",
    "GSPO",
    "LLMPPO",
    "LLMREINFORCE",
    "SFT",
    "APIMultiTurnRollout",
    "ActionRefusedError",
    "AgentEnv",
    "AsyncPolicy",
    "Batch",
    "BatchedRollout",
    "CheckReport",
    "CheckpointError",
    "ConcurrentRollout",
    "ConfigurationError",
    "DatasetEnv",
    "DeviceMesh",
    "Ending",
    "Env",
    "EnvError",
    "EnvPool",
    "EnvPoolAdapter",
    "EnvServer",
    "EnvTimeoutError",
    "EnvTool",
    "EpisodeOrder",
    "EpisodeOverError",
    "FinishReason",
    "Gate",
    "Group",
    "GroupMismatchError",
    "HFPolicy",
    "InProcessEnvClient",
    "Job",
    "LLMJudge",
    "Learner",
    "Ledger",
    "Limits",
    "LoadedModel",
    "LocalModel",
    "LocalSandboxServer",
    "LoraSettings",
    "LostSessionError",
    "Manifest",
    "ManifestError",
    "McpServer",
    "McpTools",
    "Message",
    "MissingExtraError",
    "MultiTurnRollout",
    "OpenAI",
    "OpenEnv",
    "OpenEnvClient",
    "OptimiserSettings",
    "Placement",
    "Policy",
    "PolicyError",
    "PreflightReport",
    "Prompt",
    "PromptTooLongError",
    "QADatasetEnv",
    "RayOptions",
    "RemoteEnvClient",
    "Renderer",
    "Reply",
    "ResetNeededError",
    "RolloutCollector",
    "RolloutError",
    "RolloutHarness",
    "RolloutWorkers",
    "RowSettings",
    "RowSplit",
    "Rows",
    "RowsNotFoundError",
    "Rubric",
    "Sampled",
    "Sampling",
    "Sequential",
    "ServerFullError",
    "ServerReport",
    "StepResult",
    "Task",
    "TaskAssigner",
    "TemplateError",
    "TextEnv",
    "TextTurns",
    "TiltyardError",
    "TokenPolicy",
    "TokenRequest",
    "Tool",
    "ToolCall",
    "ToolCrashError",
    "ToolError",
    "ToolManager",
    "ToolSchema",
    "ToolTurns",
    "Trajectory",
    "Transcript",
    "TranscriptError",
    "Turn",
    "TurnEnv",
    "WeightedSum",
    "WorkerInfo",
    "WorkerLostError",
    "as_turns",
    "build_batch",
    "check_env",
    "episode",
    "evaluation_tasks",
    "export_run",
    "load_manifest",
    "load_model",
    "load_rows",
    "make_renderer",
    "make_trainable",
    "mcp_factory",
    "mcp_tools",
    "preflight",
    "process_observation",
    "resolve_env",
    "score_batch",
    "split_rows",
    "tool",
    "train_llm_dataset",
    "train_llm_rollout",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        retired = importlib.import_module("tiltyard._retired").RETIRED.get(name)
        raise AttributeError(
            f"module 'tiltyard' has no attribute {name!r}" + (f"; here it is {retired}" if retired else "")
        )
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
