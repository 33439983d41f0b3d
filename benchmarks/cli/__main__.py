"""`python -m benchmarks.cli [--rounds 7] [--only NAME]` prints its figures, as its last line one JSON object."""

import argparse
import json
from collections.abc import Callable
from typing import Any

from benchmarks.cli import commands, report_page


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parts: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "commands": lambda options: commands.figures(options.rounds),
        "report": lambda options: report_page.figures(min(options.rounds, 3)),
    }
    parser.add_argument("--only", choices=[*parts])
    options = parser.parse_args(arguments)
    result: dict[str, Any] = {"benchmark": "cli"}
    for name, figures in parts.items():
        if options.only in (None, name):
            result |= figures(options)
            print(name, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
