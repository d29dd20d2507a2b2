"""How a server reads what its model says."""

from dataclasses import dataclass

from looseleaf.text.dialects import DIALECTS, Dialect, dialect_of


@dataclass(frozen=True, slots=True)
class ReplySettings:
    """`tool_call_parser` None is what the chat template says. Without `auto_tool_choice` calls are
    read only where a request forces them. With `timings` every answer has them."""

    auto_tool_choice: bool = True
    tool_call_parser: str | None = None
    reasoning_parser: str = "none"
    timings: bool = False

    def dialect(self, template: str) -> Dialect:
        if self.tool_call_parser is None:
            return dialect_of(template)
        return DIALECTS[self.tool_call_parser]


DEFAULT_REPLIES = ReplySettings()
