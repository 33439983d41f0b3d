"""Run folders as runs leave them, with episodes that are written down here and were never played."""

from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.transcript import Transcript
from tiltyard.train.run_folder import RunFolder
from tiltyard.types import Task

CONFIG = "training: {{steps: {steps}}}\nmodel: {{name: {model}}}\nalgorithm: {{name: GRPO, group_size: 2}}\n"

TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"where": "box A"}'}}


def transcript(*turns: tuple[list[int], list[int]]) -> Transcript:
    """Tokens of turns, each a context and what was sampled after it, of log-probability -0.5."""
    made = Transcript()
    for context, sampled in turns:
        made.observe(context)
        made.sample(sampled, [-0.5] * len(sampled))
    return made


def said(episode_id: str, text: str = "B", reward: float | None = 1.0, **fields) -> Trajectory:
    """An episode of one turn."""
    return replace(
        Trajectory(
            episode_id=episode_id,
            task=Task(seed=7, row_index=3),
            ending=Ending.DONE,
            messages=({"role": "user", "content": "Which box?"}, {"role": "assistant", "content": text}),
            rewards=(reward,),
            success=reward is not None and reward > 0,
            transcript=transcript(([72, 105], [66])),
            seconds=1.5,
        ),
        **fields,
    )


def failed(episode_id: str, error: str = "OSError: the box is stuck") -> Trajectory:
    """An episode whose environment raised before the model said a thing."""
    return Trajectory(
        episode_id=episode_id, task=Task(seed=8), ending=Ending.ENV_ERROR, error=error, rewards=(), messages=()
    )


def with_tool(episode_id: str) -> Trajectory:
    """An episode of two turns: a tool call, its result, and an answer."""
    return said(
        episode_id,
        messages=(
            {"role": "user", "content": "Find the coin."},
            {"role": "assistant", "content": "Let me look.", "tool_calls": [TOOL_CALL]},
            {"role": "tool", "name": "look", "tool_call_id": "c1", "content": "It is empty."},
            {"role": "assistant", "content": "Not in A."},
        ),
        rewards=(0.25, -1.0),
        success=False,
        transcript=transcript(([72, 105], [66, 67]), ([68], [69])),
    )


def score(mean: float, step: int) -> dict:
    """An evaluation as `summary.json` has it."""
    figure = {"mean": mean, "low": mean - 0.05, "high": mean + 0.05, "n": 20}
    counts = {"turns": 1.5, "turns_to_success": None, "failed": 0, "unscored": 0}
    return {"metric": "success", **figure, "success": figure, "reward": figure, "valid": None, "step": step, **counts}


def write_run(path: Path, episodes, *, steps: int = 5, model: str = "nowhere/at-all", **extra_figures) -> Path:
    """Write a finished run: `steps` steps, two evaluations, and these episodes in step 1 of training."""
    with RunFolder.create(path, CONFIG.format(steps=steps, model=model)) as folder:
        for trajectory in episodes:
            folder.write_trajectory(trajectory, phase="train", step=1, group="g")
        for step in range(1, steps + 1):
            shares = {"success": step / 10, "failed": 0, "truncated": 1, "episodes": 8, "sampled_tokens": 40}
            figures = {"step": step, "reward": step / 5, "entropy": 2 / step, "kl": step / 100, "turns": 1.5, **shares}
            folder.write_metrics({**figures, "loss": 0.1, "seconds": {"step": 1.0}, **extra_figures})
        folder.write_summary(
            {
                "folder": str(path),
                "steps": steps,
                "steps_done": steps,
                "optimiser_steps": steps,
                "interrupted": False,
                "attempts": 1,
                "seconds": 61.0,
                "eval_before": score(0.2, 0),
                "eval_after": score(0.8, steps),
                "failed": sum(trajectory.failed for trajectory in episodes),
                "ledger": {"sampled": 40, "ok": True, "verdict": "clean"},
            }
        )
    return path


def tokenizer_in(folder: Path) -> str:
    """Write a tokenizer whose tokens are characters; returns the folder as a model's name."""
    folder.mkdir()
    characters = WordLevel({chr(code): code for code in range(256)}, unk_token="?")
    Tokenizer(characters).save(str(folder / "tokenizer.json"))
    return str(folder)
