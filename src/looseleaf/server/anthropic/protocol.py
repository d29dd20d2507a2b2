"""What requests and answers of Anthropic's Messages API hold."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from looseleaf.server.protocol import Integer


class Message(Struct, kw_only=True):
    role: str
    content: str | list[dict[str, Any]]


class Tool(Struct, kw_only=True):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(Struct, kw_only=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool = False


class OutputFormat(Struct, kw_only=True):
    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(Struct, kw_only=True):
    """`effort` is ignored."""

    format: OutputFormat | None = None
    effort: Any = None


class PromptFields(Struct, kw_only=True):
    model: str
    messages: list[Message]
    system: str | list[dict[str, Any]] | None = None
    tools: list[Tool] = []
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None


class CountRequest(PromptFields, kw_only=True):
    """The fields of a request that make its prompt."""


class MessagesRequest(PromptFields, kw_only=True):
    max_tokens: Integer
    stop_sequences: list[str] = []
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Integer = 0
    stream: bool = False
    metadata: Any = None
    cache_salt: str | None = None


class Usage(Struct, kw_only=True):
    """`input_tokens` are those of the prompt that were not found stored."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class Block(Struct, kw_only=True):
    """A text, a thought, or the use of a tool: each has the fields of its type."""

    type: str
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    signature: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    input: dict[str, Any] | UnsetType = UNSET


class MessageAnswer(Struct, kw_only=True):
    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[Block]
    stop_reason: str | None
    stop_sequence: str | None
    usage: Usage


class TokenCount(Struct, kw_only=True):
    input_tokens: int


class ErrorDetail(Struct, kw_only=True):
    type: str
    message: str


class ErrorAnswer(Struct, kw_only=True):
    type: str = "error"
    error: ErrorDetail
