"""What a check-up of an environment found, and how it reads."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as a run needs it.

    Attributes:
        check: The rule.
        level: An error breaks runs or rewards; a warning may be meant.
        message: What was expected, and what was seen.
        cure: What to do about it.
    """

    check: str
    level: Level
    message: str
    cure: str

    def __str__(self) -> str:
        return f"{self.level.upper():<7} {self.check}\n        {self.message}\n        cure: {self.cure}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `check_env` found.

    Attributes:
        name: The environment's class.
        passed: The rules that hold.
        findings: What does not hold.
        skipped: The rules that could not be tried, each with why.
    """

    name: str
    passed: tuple[str, ...]
    findings: tuple[Finding, ...]
    skipped: tuple[str, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that break runs or rewards."""
        return tuple(finding for finding in self.findings if finding.level == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that may be meant."""
        return tuple(finding for finding in self.findings if finding.level == "warning")

    @property
    def ok(self) -> bool:
        """True without errors; warnings do not count."""
        return not self.errors

    def __str__(self) -> str:
        lines = [f"ok      {check}" for check in self.passed]
        lines += [f"skipped {check}" for check in self.skipped]
        lines += [str(finding) for finding in (*self.warnings, *self.errors)]
        verdict = "sound" if self.ok else "not sound"
        return "\n".join(
            [*lines, f"{self.name} is {verdict}: {_count(self.errors, 'error')}, {_count(self.warnings, 'warning')}"]
        )


def _count(findings: tuple[Finding, ...], noun: str) -> str:
    return f"{len(findings)} {noun}{'' if len(findings) == 1 else 's'}"
