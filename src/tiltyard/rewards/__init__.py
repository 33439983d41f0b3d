"""Scores of an answer to a data row: functions, and rubrics of named and weighted parts."""

from tiltyard.rewards.answer import Answer
from tiltyard.rewards.rubric import Gate, Rubric, Sequential, Verdict, WeightedSum, as_rubric

__all__ = ["Answer", "Gate", "Rubric", "Sequential", "Verdict", "WeightedSum", "as_rubric"]
