"""What requests and answers of Ollama's API hold."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from looseleaf.server.protocol import Integer


class Options(Struct, kw_only=True, frozen=True):
    """With Ollama's own defaults. Others (`num_ctx`, `num_thread`, ...) change nothing."""

    num_predict: Integer = -1
    temperature: float = 0.8
    top_k: Integer = 40
    top_p: float = 0.9
    min_p: float = 0.0
    seed: Integer | None = None
    stop: str | list[str] = []
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


class OllamaRequest(Struct, kw_only=True):
    """`keep_alive` and `think` change nothing: the one model stays, and thinks as it will."""

    model: str
    stream: bool = True
    format: str | dict[str, Any] = ""
    options: Options = Options()
    keep_alive: Any = None
    think: Any = None
    logprobs: bool = False
    top_logprobs: Integer = 0


class ChatRequest(OllamaRequest, kw_only=True):
    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []


class GenerateRequest(OllamaRequest, kw_only=True):
    """With `raw` the prompt is used as it is, without the chat template."""

    prompt: str = ""
    system: str = ""
    raw: bool = False
    images: list[Any] = []
    template: str = ""
    suffix: str = ""
    context: Any = None


class ShowRequest(Struct, kw_only=True):
    model: str = ""
    name: str = ""
    verbose: bool = False


class Function(Struct, kw_only=True):
    name: str
    arguments: dict[str, Any]


class ToolCall(Struct, kw_only=True):
    function: Function


class Message(Struct, kw_only=True):
    role: str = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Answer(Struct, kw_only=True):
    """A piece or, with `done`, the last one, or the whole answer. Durations are in nanoseconds."""

    model: str
    created_at: str
    message: Message | UnsetType = UNSET
    response: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    done: bool = False
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class ErrorAnswer(Struct, kw_only=True):
    error: str
