"""What requests and answers of /v1/responses hold, and the events of its streams."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

from looseleaf.server.protocol import Integer, TokenLogprob


class TextFormat(Struct, kw_only=True):
    type: str = "text"
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(Struct, kw_only=True):
    """`verbosity` is ignored."""

    format: TextFormat | None = None
    verbosity: Any = None


class ResponsesRequest(Struct, kw_only=True):
    """`reasoning`, `include` (but for log-probabilities), `truncation` and the fields after it
    change nothing."""

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Integer | None = None
    previous_response_id: str | None = None
    store: bool = True
    stream: bool = False
    background: bool = False
    conversation: Any = None
    prompt: Any = None
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    text: TextOptions | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_logprobs: Integer = 0
    include: list[str] = []
    metadata: dict[str, Any] = {}
    reasoning: dict[str, Any] | None = None
    cache_salt: str | None = None
    priority: Integer = 0
    seed: Integer | None = None
    truncation: Any = None
    stream_options: Any = None
    max_tool_calls: Any = None


class OutputPart(Struct, kw_only=True):
    """A text of a message (then with `annotations`), or of a thought."""

    type: str
    text: str
    annotations: list[Any] | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class OutputItem(Struct, kw_only=True):
    """A message, a thought, or the call of a function: each has the fields of its type."""

    id: str
    type: str
    status: str
    role: str | UnsetType = UNSET
    content: list[OutputPart] | UnsetType = UNSET
    summary: list[Any] | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class InputTokensDetails(Struct, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct, kw_only=True):
    """Those of thoughts are not counted apart."""

    reasoning_tokens: int = 0


class ResponseUsage(Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(Struct, kw_only=True):
    code: str
    message: str


class IncompleteDetails(Struct, kw_only=True):
    reason: str


class ResponseAnswer(Struct, kw_only=True):
    id: str
    object: str = "response"
    created_at: int
    status: str
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None = None
    background: bool = False
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any] = field(default_factory=lambda: {"effort": None, "summary": None})
    store: bool
    temperature: float
    text: TextOptions
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str = "disabled"


class Deleted(Struct, kw_only=True):
    id: str
    object: str = "response"
    deleted: bool = True
