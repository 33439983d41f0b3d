"""The page of a run of 5,000 episodes: how long writing it takes, and how long Chromium takes to draw it."""

import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tiltyard.rollout.outcome import Ending
from tiltyard.rollout.trajectory import Trajectory
from tiltyard.tokens.transcript import Transcript
from tiltyard.train.run_folder import RunFolder
from tiltyard.types import Task

EPISODES, STEPS, TURNS, TOKENS = 5_000, 200, 4, 40
WORDS = ("the", "coin", "is", "not", "in", "this", "box", "so", "look", "into", "one", "that", "nobody", "opened")


def figures(rounds: int) -> dict[str, Any]:
    """Write the run once, and its report `rounds` times, each in a new process; open it as often."""
    with tempfile.TemporaryDirectory() as scratch:
        run = write_run(Path(scratch) / "run")
        report_s = [_report_s(run) for _ in range(rounds)]
        report = run / "report.html"
        painted = [_opened_s(report) for _ in range(rounds)] if shutil.which("chromedriver") else []
        return {
            "report_5000_s": round(statistics.median(report_s), 2),
            "first_paint_s": round(statistics.median(paint for paint, _ in painted), 2) if painted else None,
            "all_drawn_s": round(statistics.median(drawn for _, drawn in painted), 2) if painted else None,
            "report_mb": round(report.stat().st_size / 1e6, 1),
            "trajectories_mb": round((run / "trajectories.jsonl").stat().st_size / 1e6, 1),
        }


def write_run(path: Path) -> Path:
    """A finished run of 5,000 episodes of four turns and 160 sampled tokens, all at random."""
    chance = random.Random(0)
    with RunFolder.create(path, "training: {steps: 200}\nmodel: {name: smollm2-135m-instruct}\n") as folder:
        for number in range(EPISODES):
            step = number * STEPS // EPISODES + 1
            folder.write_trajectory(_episode(number, chance), phase="train", step=step, group=f"{number // 8}")
        for step in range(1, STEPS + 1):
            figures = {name: chance.random() for name in ("reward", "success", "entropy", "kl", "loss", "grad_norm")}
            folder.write_metrics({"step": step, "episodes": 25, "failed": 0, "sampled_tokens": 4000, **figures})
        folder.write_summary({"steps": STEPS, "steps_done": STEPS, "attempts": 1, "seconds": 9e3, "interrupted": False})
    return path


def _episode(number: int, chance: random.Random) -> Trajectory:
    transcript = Transcript()
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Find the coin. Never open a box twice."}]
    for _ in range(TURNS):
        transcript.observe([chance.randrange(49_000) for _ in range(TOKENS)])
        logprobs = [-chance.expovariate(1.0) for _ in range(TOKENS)]
        transcript.sample([chance.randrange(49_000) for _ in range(TOKENS)], logprobs)
        messages.append({"role": "user", "content": " ".join(chance.choices(WORDS, k=TOKENS))})
        messages.append({"role": "assistant", "content": " ".join(chance.choices(WORDS, k=TOKENS))})
    return Trajectory(
        episode_id=f"{number:05d}",
        task=Task(seed=number, row_index=number // 8),
        ending=chance.choice((Ending.DONE, Ending.STOP, Ending.LENGTH)),
        messages=tuple(messages),
        rewards=tuple(chance.random() for _ in range(TURNS)),
        success=chance.random() < 0.5,
        transcript=transcript,
        seconds=chance.random(),
    )


def _report_s(run: Path) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "tiltyard", "report", str(run)], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def _opened_s(report: Path) -> tuple[float, float]:
    """Seconds in a new browser until the first paint, and until curves, table and filters are all there."""
    from selenium import webdriver  # noqa: PLC0415  # the other figures need no browser

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        driver.get(report.as_uri())
        deadline = time.monotonic() + 60
        while not driver.execute_script("return performance.getEntriesByName('tiltyard-ready').length"):
            assert time.monotonic() < deadline, "the report is not ready after a minute"
            time.sleep(0.05)
        paint = "return performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
        ready = "return performance.getEntriesByName('tiltyard-ready')[0].startTime / 1000"
        return driver.execute_script(paint), driver.execute_script(ready)
    finally:
        driver.quit()
