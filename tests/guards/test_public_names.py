"""The public names and how they are called: a change here is a decision, and goes into the changelog."""

import inspect
from typing import get_origin

import pytest

import tiltyard

# ruff: noqa: E501 - one signature a line


def shape(value):
    """How a public thing is called: its parameters, `=` after those that may be left out; or what it is."""
    if get_origin(value) is not None:
        return "alias"
    if not callable(value):
        return type(value).__name__
    if isinstance(value, type) and issubclass(value, BaseException):
        return f"error: {', '.join(base.__name__ for base in value.__bases__)}"
    if isinstance(value, type) and getattr(value, "_is_protocol", False):
        return "protocol"
    if isinstance(value, type) and issubclass(value, str):
        return f"names: {', '.join(value)}"
    return f"({', '.join(parameters(value))})"


def parameters(function):
    after_star = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not after_star:
            after_star = True
            yield "*"
        if parameter.kind is parameter.VAR_KEYWORD:
            yield f"**{parameter.name}"
        elif parameter.kind is parameter.VAR_POSITIONAL:
            after_star = True
            yield f"*{parameter.name}"
        else:
            yield parameter.name + ("" if parameter.default is parameter.empty else "=")


PUBLIC = {
    "APIMultiTurnRollout": "(api, tool_manager=, sampling_params=, max_turns=, concurrency=, extra_body=, trace_dir=, *, env_factory=, max_trajectory_tokens=, limits=, max_observation_chars=, seed=, score=, reward_fns=, reward_weights=, trace_callback=, success_callback=, preflight=, placement=)",
    "ActionRefusedError": "error: EnvError",
    "AgentEnv": "(template=, api_url=, api_key=, sandbox_timeout=, command_timeout=, setup_commands=, sandbox_envs=, metadata=, refresh_timeout=, include_default_tools=, *, run_id=, start_timeout_s=)",
    "AsyncPolicy": "protocol",
    "Batch": "(groups, granularity, counts, scores=)",
    "BatchedRollout": "(policy, renderer, limits, *, seed=, linger_s=, prompt_s=, max_live=)",
    "CISPO": "(group_size=, kl_coef=, kl_estimator=, kl_in=, loss_normaliser=, constant_length=, epochs=, minibatches=, old_logprobs=, sampler_cap=, entropy_coef=, overlong_penalty=, overlong_from=, overlong_until=, advantage_granularity=, turn_discount=, scale_rewards=, zero_variance=, clip_low=, clip_high=)",
    "CheckReport": "(name, passed, findings, skipped)",
    "CheckpointError": "error: TiltyardError",
    "ConcurrentRollout": "(policy, limits, *, concurrency=, seed=)",
    "ConfigurationError": "error: TiltyardError, ValueError",
    "DatasetEnv": "(rows, tokenizer, *, objective, response_column=, settings=, prompt_of=, train_test_split=, seed=)",
    "DeviceMesh": "(sizes=)",
    "DPO": "(loss=, beta=, label_smoothing=, nll_coef=, reference_free=)",
    "ENDINGS": "dict",
    "Ending": "names: done, stop, length, context, prompt_too_long, max_turns, max_tool_calls, timeout, env_truncated, unscored, api_error, env_error, tool_crash, lost_session",
    "Env": "()",
    "EnvError": "error: RolloutError",
    "EnvPool": "(pool_size=, device_mesh=, env_kwargs=, env_factory=, num_workers=, backend=, *, step_timeout_s=, start_timeout_s=, ray=, progress=)",
    "EnvPoolAdapter": "(hold)",
    "EnvServer": "(desk, place)",
    "EnvTimeoutError": "error: EnvError, TimeoutError",
    "EnvTool": "(env, tool_name=, description=, parameters=)",
    "EpisodeOrder": "(task, episode_id, sampling_seed=, row=, shown=)",
    "EpisodeOverError": "error: TiltyardError, RuntimeError",
    "FinishReason": "alias",
    "GRPO": "(group_size=, kl_coef=, kl_estimator=, kl_in=, loss_normaliser=, constant_length=, epochs=, minibatches=, old_logprobs=, sampler_cap=, entropy_coef=, overlong_penalty=, overlong_from=, overlong_until=, advantage_granularity=, turn_discount=, scale_rewards=, zero_variance=, clip_low=, clip_high=)",
    "GSPO": "(group_size=, kl_coef=, kl_estimator=, kl_in=, loss_normaliser=, constant_length=, epochs=, minibatches=, old_logprobs=, sampler_cap=, entropy_coef=, overlong_penalty=, overlong_from=, overlong_until=, advantage_granularity=, turn_discount=, scale_rewards=, zero_variance=, clip_low=, clip_high=)",
    "Gate": "(condition, then, *, above=)",
    "Group": "(key, task, members)",
    "GroupMismatchError": "error: ConfigurationError",
    "HFPolicy": "(model, *, stop_ids, sampling=, context_length=, max_batch=, max_prefill_tokens=, max_cache_bytes=)",
    "InProcessEnvClient": "(env)",
    "Job": "(env, task, episode_id, sampling_seed=)",
    "LLMJudge": "(api, rubric=, *, prompt=, low=, high=, max_tokens=, conversation=, columns=)",
    "LLMPPO": "(group_size=, kl_coef=, kl_estimator=, kl_in=, loss_normaliser=, constant_length=, epochs=, minibatches=, old_logprobs=, sampler_cap=, entropy_coef=, overlong_penalty=, overlong_from=, overlong_until=, advantage_granularity=, discount=, normalise_advantages=, gae_lambda=, clip_low=, clip_high=, value_coef=, value_clip=, value_learning_rate=, value_trains_model=)",
    "LLMREINFORCE": "(group_size=, kl_coef=, kl_estimator=, kl_in=, loss_normaliser=, constant_length=, epochs=, minibatches=, old_logprobs=, sampler_cap=, entropy_coef=, overlong_penalty=, overlong_from=, overlong_until=, advantage_granularity=, discount=, normalise_advantages=, baseline=, ratio_cap=)",
    "Learner": "(trainable, algorithm, settings, *, sampling=, pack_tokens=, before_step=)",
    "Ledger": "(episodes=, turns=, tokens=, sampled=, without_logprob=, extended=, forks=, compared=, difference_sum=, difference_max=, rewrites_history=)",
    "Limits": "(max_turns=, max_tokens_per_turn=, max_context=, max_seconds=, max_tool_calls=, step_timeout_s=, length_reward=)",
    "LoadedModel": "(model, tokenizer, name)",
    "LocalModel": "(trainable, renderer)",
    "LoraSettings": "(rank=, alpha=, dropout=, targets=)",
    "LocalSandboxServer": "(templates=, *, host=, port=, api_key=, warm=, max_sandboxes=, unsafe=)",
    "LostSessionError": "error: RolloutError",
    "Manifest": "(*, environment, model, algorithm=, rollout=, training=)",
    "ManifestError": "error: ConfigurationError",
    "McpServer": "(command=, url=, env=, cwd=, headers=, connect_timeout_s=, call_timeout_s=)",
    "McpTools": "(session, tools)",
    "Message": "alias",
    "MissingExtraError": "error: TiltyardError, ImportError",
    "MultiTurnRollout": "(policy, tool_manager=, env_factory=, max_turns=, max_trajectory_tokens=, trace_dir=, *, tokenizer=, renderer=, chat_template_kwargs=, parser=, limits=, max_observation_chars=, concurrency=, seed=, score=, reward_fns=, reward_weights=, trace_callback=, success_callback=, preflight=)",
    "OpenAI": "(model, base_url=, api_key=, *, sampling=, extra_body=, token_ids=, timeout_s=, max_retries=, retry_delay_s=, max_connections=, max_response_bytes=, client=)",
    "OpenEnv": "(env_name=, env_cls=, env_kwargs=, action_cls=, action_mapper=, **older)",
    "OpenEnvClient": "(env_name=, env_cls=, base_url=, action_cls=, action_mapper=, tools=, reset_kwargs=, connect_timeout_s=, message_timeout_s=, client_kwargs=, *, capacity_timeout_s=, token=)",
    "OptimiserSettings": "(learning_rate, weight_decay=, warmup_steps=, max_grad_norm=, schedule=, total_steps=, end_share=)",
    "Placement": "(backend=, workers=, ray=)",
    "Policy": "protocol",
    "PolicyError": "error: RolloutError",
    "PreflightReport": "(passed=, skipped=, tools=)",
    "Prompt": "(messages, new, tools=, seed=)",
    "PromptTooLongError": "error: PolicyError",
    "QADatasetEnv": "(rows, rubric, *, prompt_template=, held_out=, max_turns=, max_reward=, retry=)",
    "RayOptions": "(address=, num_cpus=, resources=, placement=, runtime_env=)",
    "RemoteEnvClient": "(base_url, *, action_field=, mcp_tool=, request_timeout_s=, connect_timeout_s=, capacity_timeout_s=, token=)",
    "Renderer": "protocol",
    "Reply": "(text, tool_calls=, reasoning=, finish_reason=, token_ids=, logprobs=, prompt_ids=, context_tokens=, sampled_tokens=, written=)",
    "ResetNeededError": "error: LostSessionError",
    "RolloutCollector": "(env_factory, batch_size, group_size, *, policy, renderer, limits, assigner, seed=, on_finished=, linger_s=, prompt_s=, max_live=, rank=, world_size=, placement=)",
    "RolloutError": "error: TiltyardError",
    "RolloutHarness": "(env_client, tokenizer, max_turns=, *, limits=, renderer=, chat_template_kwargs=, observation_field=, observation_processor=, system_prompt=, action_field=, mcp_tool=, request_timeout_s=)",
    "RolloutWorkers": "(env_factory, policy, limits, *, placement=, concurrency=, seed=, retries=, scoring=, start_timeout_s=, silence_timeout_s=)",
    "RowSettings": "(turns=, max_length=, too_long=, plain_text=, chat_template_kwargs=, tool_parser=)",
    "RowSplit": "(train, held_out)",
    "Rows": "(source, name, columns=, order=)",
    "RowsNotFoundError": "error: ConfigurationError, FileNotFoundError",
    "Rubric": "()",
    "SFT": "(loss_normaliser=)",
    "Sampled": "(ids, logprobs, finish_reason)",
    "Sampling": "(temperature=, top_p=, top_k=)",
    "Sequential": "(parts, weights=, *, above=)",
    "ServerFullError": "error: LostSessionError",
    "ServerReport": "(sessions, active, leaked, failures=)",
    "StepResult": "(observation=, reward=, done=, info=, truncated=)",
    "Task": "(seed=, row_index=, evaluation=, epoch=, messages=, data=)",
    "TaskAssigner": "(dataset_size, batch_size, *, seed=, rank=, world_size=, name=)",
    "TemplateError": "error: ConfigurationError",
    "TextEnv": "protocol",
    "TextTurns": "(env, *, max_observation_chars=, observation_field=, observation_processor=)",
    "TiltyardError": "error: Exception",
    "TokenPolicy": "protocol",
    "TokenRequest": "(key, ids, max_tokens, seed, replay=)",
    "Tool": "protocol",
    "ToolCall": "(name, arguments, id=, error=, raw=)",
    "ToolCrashError": "error: RolloutError",
    "ToolError": "error: TiltyardError",
    "ToolManager": "(tools=)",
    "ToolSchema": "alias",
    "ToolTurns": "(env, *, max_observation_chars=)",
    "Trajectory": "(episode_id, task, ending, messages=, tools=, rewards=, start_reward=, error=, first_observation=, info=, success=, transcript=, seconds=, untrainable=)",
    "Transcript": "(ids=, mask=, logprobs=, turn=, version=, _turns=)",
    "TranscriptError": "error: TiltyardError, ValueError",
    "Turn": "(messages=, reward=, done=, truncated=, stopped=, info=)",
    "TurnEnv": "protocol",
    "WeightedSum": "(parts, weights=)",
    "WorkerInfo": "(number, slots, generation, pid, node)",
    "WorkerLostError": "error: LostSessionError",
    "as_turns": "(env, *, max_observation_chars=)",
    "build_batch": "(groups, algorithm, *, truncated=)",
    "check_env": "(env_or_factory, *, seed=, play=, answer=, instances=, max_turns=, timeout_s=)",
    "episode": "(env, task, limits=, *, episode_id=, clock=)",
    "evaluation_tasks": "(count, *, dataset_size=, seed=)",
    "export_run": "(run, out, *, checkpoint=, merge=)",
    "load_manifest": "(path, overrides=)",
    "load_model": "(name, *, dtype=, device=, cache_dir=)",
    "load_rows": "(source, *, columns=, base=, split=)",
    "make_renderer": "(tokenizer, *, tools=, chat_template_kwargs=, parser=)",
    "make_trainable": "(model, what=, *, lora=, keep_reference=)",
    "mcp_factory": "(server, *, only=, parallel=, leases=)",
    "mcp_tools": "(server, *, only=, parallel=, shared=, leases=)",
    "preflight": "(renderer=, tools=, *, tokenizer=, chat_template_kwargs=, parser=, env=, task=, timeout_s=)",
    "process_observation": "(payload, observation_field=)",
    "resolve_env": "(spec, env_config=, *, host=, port=, max_concurrent_envs=, workers=, token=, call_timeout_s=, action_cls=)",
    "score_batch": "(env, results, **options)",
    "split_rows": "(rows, train_test_split, *, seed=)",
    "tool": "(function, *, parallel=)",
    "train_llm_dataset": "(config=, env=, policy=, *, out=, resume=, observer=)",
    "train_llm_rollout": "(config=, env_factory=, policy=, *, out=, resume=, observer=)",
}

METHODS = {
    "Env.reset": "(self, trajectory=)",
    "Env.step": "(self, tool_name, arguments)",
    "Env.tools": "(self)",
    "Env.evaluate": "(self, trajectories, **kwargs)",
    "Env.close": "(self)",
    "EnvTool.from_env": "(env)",
    "ToolManager.register": "(self, tool)",
    "ToolManager.unregister": "(self, name)",
    "ToolManager.copy": "(self)",
    "ToolManager.tool_infos": "(self)",
    "ToolManager.step": "(self, tool_call)",
    "ToolManager.__call__": "(self, tool_call)",
    "RolloutHarness.local": "(env, tokenizer, max_turns=, **options)",
    "RolloutHarness.from_spec": "(spec, env_config, tokenizer, max_turns=, **options)",
    "RolloutHarness.reset": "(self, seed=, *, row_index=)",
    "RolloutHarness.step": "(self, token_ids, sampling_logps=, *, finish_reason=)",
    "RolloutHarness.eval_mode": "(self)",
    "RolloutHarness.get_episode_data": "(self)",
    "RolloutHarness.close": "(self, timeout_s=)",
    "RolloutCollector.collect": "(self)",
    "RolloutCollector.evaluate": "(self, tasks)",
    "RolloutCollector.close": "(self, timeout_s=)",
    "RolloutCollector.state_dict": "(self)",
    "RolloutCollector.load_state_dict": "(self, state)",
    "TaskAssigner.next": "(self)",
    "TaskAssigner.state_dict": "(self)",
    "TaskAssigner.load_state_dict": "(self, state)",
    "InProcessEnvClient.reset": "(self, seed=, *, row_index=, evaluation=)",
    "InProcessEnvClient.step": "(self, action)",
    "InProcessEnvClient.close": "(self)",
    "EnvServer.stop": "(self, timeout_s=)",
    "EnvServer.report": "(self)",
    "HFPolicy.sample": "(self, requests)",
    "HFPolicy.release": "(self, keys)",
    "HFPolicy.weights_changed": "(self)",
    "Learner.update": "(self, batch)",
    "Learner.state_dict": "(self)",
    "Learner.load_state_dict": "(self, state)",
    "MultiTurnRollout.__call__": "(self, trajectories)",
    "MultiTurnRollout.stream": "(self, trajectories)",
    "MultiTurnRollout.preflight": "(self, row=)",
    "APIMultiTurnRollout.__call__": "(self, trajectories)",
    "APIMultiTurnRollout.run_async": "(self, trajectories)",
    "APIMultiTurnRollout.stream": "(self, trajectories)",
    "APIMultiTurnRollout.stream_async": "(self, trajectories)",
    "APIMultiTurnRollout.preflight": "(self, row=)",
    "OpenAI.with_fields": "(self, sampling=, extra_body=)",
    "OpenAI.reply": "(self, prompt, *, max_tokens=)",
    "ConcurrentRollout.run": "(self, jobs, on_finished=, *, keep=)",
    "ConcurrentRollout.run_async": "(self, jobs, on_finished=, *, keep=)",
}


def test_the_public_names_are_these():
    """Nothing becomes public, or stops to be, by accident."""
    assert sorted(tiltyard.__all__) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_called_as_before(name):
    """A signature may gain parameters that can be left out; what callers write keeps its meaning."""
    assert without_new(shape(getattr(tiltyard, name)), PUBLIC[name]) == PUBLIC[name]


@pytest.mark.parametrize("name", METHODS)
def test_a_public_method_is_called_as_before(name):
    """The same for the methods of the contract."""
    owner, _, method = name.partition(".")
    assert without_new(shape(getattr(getattr(tiltyard, owner), method)), METHODS[name]) == METHODS[name]


def without_new(now, before):
    """A shape without the optional parameters that were added behind the old ones, or by keyword."""
    if not (now.startswith("(") and before.startswith("(")):
        return now
    old, kept, by_keyword = before[1:-1].split(", "), [], False
    for parameter in now[1:-1].split(", "):
        by_keyword = by_keyword or parameter.startswith("*")
        added = parameter not in old and (parameter.endswith("=") or parameter == "*")
        behind = by_keyword or len([name for name in old if name in kept]) == len(old)
        if not (added and behind):
            kept.append(parameter)
    return f"({', '.join(kept)})"


@pytest.mark.parametrize(
    ("now", "allowed"),
    [
        ("(a, b=)", True),
        ("(a, b=, c=)", True),
        ("(a, b=, *, c=)", True),
        ("(a, b=, c)", False),
        ("(a)", False),
        ("(a, c=, b=)", False),
        ("(a, b)", False),
    ],
)
def test_a_parameter_may_be_added_and_not_lost(now, allowed):
    """The rule of the contract, on signatures made up for it."""
    assert (without_new(now, "(a, b=)") == "(a, b=)") is allowed


def test_names_that_do_not_exist_are_refused():
    """A typo is an AttributeError, as for any module."""
    with pytest.raises(AttributeError, match="no attribute 'Enviroment'"):
        _ = tiltyard.Enviroment


def test_dir_lists_the_public_names():
    """Completion in an interpreter works before a name was used."""
    assert set(tiltyard.__all__) <= set(dir(tiltyard))
