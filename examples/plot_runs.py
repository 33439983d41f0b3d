"""Draw the success rate of run folders: `python examples/plot_runs.py runs/demo runs/demo-1 --out curves.png`."""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes


def draw_run(axes: Axes, run: Path, colour: str, shift: float) -> None:
    """One run: its rate per step as a line, its two evaluations as points with 95 % intervals."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    axes.plot([m["step"] for m in lines], [m["success"] for m in lines], color=colour, alpha=0.6, label=run.name)
    for step, score in ((0, summary["eval_before"]), (len(lines) + 1, summary["eval_after"])):
        if score:
            below, above = score["mean"] - score["low"], score["high"] - score["mean"]
            axes.errorbar([step + shift], [score["mean"]], [[below], [above]], color=colour, fmt="o", capsize=3)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the success rates of run folders.")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("curves.png"))
    parser.add_argument("--title", default="Success rate: training episodes (lines), held-out tasks (points, 95 %)")
    arguments = parser.parse_args()
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    for number, run in enumerate(arguments.runs):
        draw_run(axes, run, f"C{number}", shift=0.15 * (number - (len(arguments.runs) - 1) / 2))
    axes.set(xlabel="step", ylabel="success rate", ylim=(0, 1.02))
    axes.set_title(arguments.title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(arguments.out, dpi=110)
    print(arguments.out)


if __name__ == "__main__":
    main()
