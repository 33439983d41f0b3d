"""Tiltyard: language models train in environments. See `docs/` and the README."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiltyard.envs.agent.env import AgentEnv
    from tiltyard.envs.base import Env, TextEnv, TurnEnv
    from tiltyard.envs.check import check_env
    from tiltyard.envs.findings import CheckReport
    from tiltyard.envs.observation import process_observation
    from tiltyard.envs.openenv.client import OpenEnvClient
    from tiltyard.envs.openenv.embedded import OpenEnv
    from tiltyard.envs.openenv.remote import RemoteEnvClient
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
        RolloutError,
        ServerFullError,
        TemplateError,
        TiltyardError,
        ToolCrashError,
        ToolError,
        TranscriptError,
    )
    from tiltyard.manifest import Manifest, load_manifest
    from tiltyard.models.loading import LoadedModel, load_model
    from tiltyard.models.trainable import LoraSettings, make_trainable
    from tiltyard.policies.base import AsyncPolicy, Policy, Sampled, Sampling, TokenPolicy, TokenRequest
    from tiltyard.policies.hf import HFPolicy
    from tiltyard.policies.openai import OpenAI
    from tiltyard.rollout.api_multi_turn import APIMultiTurnRollout
    from tiltyard.rollout.batched import BatchedRollout, Job
    from tiltyard.rollout.collector import RolloutCollector
    from tiltyard.rollout.concurrent import ConcurrentRollout
    from tiltyard.rollout.episode import episode
    from tiltyard.rollout.groups import Group
    from tiltyard.rollout.harness import RolloutHarness
    from tiltyard.rollout.in_process import InProcessEnvClient
    from tiltyard.rollout.judge import LLMJudge
    from tiltyard.rollout.limits import Limits
    from tiltyard.rollout.multi_turn import MultiTurnRollout
    from tiltyard.rollout.outcome import ENDINGS, Ending
    from tiltyard.rollout.preflight import PreflightReport, preflight
    from tiltyard.rollout.scoring import score_batch
    from tiltyard.rollout.tasks import TaskAssigner, evaluation_tasks
    from tiltyard.rollout.trajectory import Trajectory
    from tiltyard.sandbox.server import LocalSandboxServer
    from tiltyard.serving.place import ServerReport
    from tiltyard.serving.server import EnvServer, resolve_env
    from tiltyard.tokens.ledger import Ledger
    from tiltyard.tokens.renderer import Renderer, make_renderer
    from tiltyard.tokens.transcript import Transcript
    from tiltyard.tools.base import Tool, tool
    from tiltyard.tools.manager import ToolManager
    from tiltyard.tools.mcp import McpServer, McpTools, mcp_factory, mcp_tools
    from tiltyard.train.algorithms import GRPO
    from tiltyard.train.batch import Batch, build_batch
    from tiltyard.train.learner import Learner
    from tiltyard.train.optimiser import OptimiserSettings
    from tiltyard.train.rollout import train_llm_rollout
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
    "ENDINGS": "tiltyard.rollout.outcome",
    "Ending": "tiltyard.rollout.outcome",
    "Env": "tiltyard.envs.base",
    "EnvError": "tiltyard.errors",
    "EnvServer": "tiltyard.serving.server",
    "EnvTimeoutError": "tiltyard.errors",
    "EnvTool": "tiltyard.envs.tool",
    "EpisodeOverError": "tiltyard.errors",
    "FinishReason": "tiltyard.types",
    "GRPO": "tiltyard.train.algorithms",
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
    "Policy": "tiltyard.policies.base",
    "PolicyError": "tiltyard.errors",
    "PreflightReport": "tiltyard.rollout.preflight",
    "Prompt": "tiltyard.types",
    "PromptTooLongError": "tiltyard.errors",
    "RemoteEnvClient": "tiltyard.envs.openenv.remote",
    "Renderer": "tiltyard.tokens.renderer",
    "Reply": "tiltyard.types",
    "RolloutCollector": "tiltyard.rollout.collector",
    "RolloutError": "tiltyard.errors",
    "RolloutHarness": "tiltyard.rollout.harness",
    "Sampled": "tiltyard.policies.base",
    "Sampling": "tiltyard.policies.base",
    "ServerFullError": "tiltyard.errors",
    "ServerReport": "tiltyard.serving.place",
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
    "as_turns": "tiltyard.envs.turns",
    "build_batch": "tiltyard.train.batch",
    "check_env": "tiltyard.envs.check",
    "episode": "tiltyard.rollout.episode",
    "evaluation_tasks": "tiltyard.rollout.tasks",
    "load_manifest": "tiltyard.manifest",
    "load_model": "tiltyard.models.loading",
    "make_renderer": "tiltyard.tokens.renderer",
    "make_trainable": "tiltyard.models.trainable",
    "mcp_factory": "tiltyard.tools.mcp",
    "mcp_tools": "tiltyard.tools.mcp",
    "preflight": "tiltyard.rollout.preflight",
    "process_observation": "tiltyard.envs.observation",
    "resolve_env": "tiltyard.serving.server",
    "score_batch": "tiltyard.rollout.scoring",
    "tool": "tiltyard.tools.base",
    "train_llm_rollout": "tiltyard.train.rollout",
}

__all__ = [
    "ENDINGS",
    "GRPO",
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
    "Ending",
    "Env",
    "EnvError",
    "EnvServer",
    "EnvTimeoutError",
    "EnvTool",
    "EpisodeOverError",
    "FinishReason",
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
    "Policy",
    "PolicyError",
    "PreflightReport",
    "Prompt",
    "PromptTooLongError",
    "RemoteEnvClient",
    "Renderer",
    "Reply",
    "RolloutCollector",
    "RolloutError",
    "RolloutHarness",
    "Sampled",
    "Sampling",
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
    "as_turns",
    "build_batch",
    "check_env",
    "episode",
    "evaluation_tasks",
    "load_manifest",
    "load_model",
    "make_renderer",
    "make_trainable",
    "mcp_factory",
    "mcp_tools",
    "preflight",
    "process_observation",
    "resolve_env",
    "score_batch",
    "tool",
    "train_llm_rollout",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'tiltyard' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
