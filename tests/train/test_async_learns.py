"""An asynchronous run learns what a synchronous one does."""

import pytest
from test_algorithms_learn import ENV

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["GRPO", "LLMREINFORCE"])
def test_it_learns_a_small_environment_as_well(name, manifest_in, train, read_lines, tmp_path):
    """From the same start, with the same steps: a gain of a quarter of what can be earned, outside both intervals."""
    path = manifest_in(
        tmp_path,
        ENV,
        environment="{env_type: rollout, entrypoint: 'env.py:Env', env_config: {turns: 1}, max_turns: 2}",
        algorithm=f"{{name: {name}, group_size: 8}}",
        rollout="{max_tokens_per_turn: 8, length_reward: 0}",
        training="{steps: 50, batch_size: 4, learning_rate: 3e-3, save_every: 0, eval: {tasks: 32}}",
    )
    summaries = {mode: train(path, tmp_path / mode, f"training.asynchronous={mode}") for mode in ("false", "true")}
    for summary in summaries.values():
        before, after = summary["eval_before"], summary["eval_after"]
        assert after["mean"] > before["mean"] + 1 / 4
        assert after["low"] > before["high"]
    apart = summaries["true"]["eval_after"]["mean"] - summaries["false"]["eval_after"]["mean"]
    assert apart > -0.15
    lines = read_lines(tmp_path / "true" / "metrics.jsonl")
    assert [line["staleness_max"] for line in lines] == [0, *[1] * 49]
    print(name, {mode: summary["eval_after"]["mean"] for mode, summary in summaries.items()})
