"""A tool-call environment: look into books until the note is found."""

from typing import Any

from tiltyard import Env, StepResult, ToolError, ToolSchema

BOOKS = 3


class Shelf(Env):
    """Find the book that holds the note; a book that is not there is the model's mistake and costs nothing."""

    max_turns = 4
    system_prompt = "Use the tool to look into books."

    def reset(self, trajectory: dict[str, Any] | None = None) -> StepResult:
        seed = (trajectory or {}).get("seed") or 0
        self.place = seed // 2 % BOOKS
        return StepResult(f"A note is in one of the books 0 to {BOOKS - 1}. Find it.")

    def step(self, tool_name: str, arguments: dict[str, Any]) -> StepResult:
        number = arguments["number"]
        if not 0 <= number < BOOKS:
            raise ToolError(f"there are books 0 to {BOOKS - 1}, not {number}")
        if number == self.place:
            return StepResult("Here is the note.", reward=1.0, done=True, info={"success": True})
        return StepResult("Nothing in this one.", info={"success": False})

    def tools(self) -> list[ToolSchema]:
        parameters = {
            "type": "object",
            "properties": {"number": {"type": "integer", "description": "The book's number."}},
            "required": ["number"],
        }
        function = {"name": "open_book", "description": "Look into a book.", "parameters": parameters}
        return [{"type": "function", "function": function}]
