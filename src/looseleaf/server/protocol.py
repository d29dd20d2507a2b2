"""What requests and answers hold. The spellings are OpenAI's, with the extras of vLLM."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from looseleaf.core.errors import LooseleafError
from looseleaf.core.hashing import ExtraKeys
from looseleaf.engine.beams import BeamSearchParams
from looseleaf.engine.params import resolve
from looseleaf.sampling.params import SamplingParams, StructuredOutputs
from looseleaf.server.errors import invalid
from looseleaf.server.figures import RequestFigures, Timings
from looseleaf.text.grammar import Grammars
from looseleaf.text.tokenizer import Tokenizer

MAX_CHOICES = 1024
"""Answers to one HTTP request: prompts times `n`."""
MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 1000
MAX_STOP_TOKEN_IDS = 128
MAX_SALT_CHARS = 1000
MAX_BIASES = 1024
MAX_BAD_WORDS = 128
MAX_BEAM_TOKENS = 2**31
"""Of a search that may go on to the end of the context."""

Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class StreamOptions(Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(Struct, kw_only=True):
    name: str = ""
    schema: dict[str, Any] | bool = {}
    strict: bool | None = None


class ResponseFormat(Struct, kw_only=True):
    type: str
    json_schema: JsonSchema | None = None


class StructuredFields(Struct, kw_only=True):
    """As vLLM has them."""

    json: str | dict[str, Any] | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class GenerationRequest(Struct, kw_only=True):
    """What both kinds of completion take. Null fields never get here: they count as omitted."""

    model: str
    n: Integer = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Integer = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[str, float] = {}
    allowed_token_ids: list[Integer] | None = None
    bad_words: list[str] = []
    min_tokens: Integer = 0
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredFields | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    seed: Integer | None = None
    max_tokens: Integer | None = None
    stop: str | list[str] = []
    stop_token_ids: list[Integer] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    add_special_tokens: bool | None = None
    cache_salt: str | None = None
    priority: Integer = 0
    timeout: float | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool = False
    prompt_logprobs: Integer | None = None
    truncate_prompt_tokens: Integer | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    request_id: str | None = None
    timings: bool = False
    metrics: bool = False

    def sampling_params(
        self,
        tokenizer: Tokenizer,
        grammars: Grammars,
        *,
        max_tokens: int | None,
        logprobs: int | None,
        prompt_logprobs: int | None = None,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> SamplingParams:
        """Raises ApiError for values that are out of range.

        `names` are the request's fields for those of SamplingParams that are called otherwise.
        """
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options needs stream: true", "stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise invalid("prompt_logprobs cannot be streamed: leave one out", "prompt_logprobs")
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        if len(stop) > MAX_STOP_STRINGS:
            raise invalid(
                f"stop has {len(stop)} strings, but it may have at most {MAX_STOP_STRINGS}", "stop"
            )
        if not all(stop):
            raise invalid("stop has an empty string; give each at least one character", "stop")
        longest = max(map(len, stop), default=0)
        if longest > MAX_STOP_CHARS:
            raise invalid(
                f"stop has a string of {longest} characters, but each may have at most "
                f"{MAX_STOP_CHARS}",
                "stop",
            )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise invalid(
                f"stop_token_ids has {len(self.stop_token_ids)} ids, but it may have at most "
                f"{MAX_STOP_TOKEN_IDS}",
                "stop_token_ids",
            )
        if len(self.logit_bias) > MAX_BIASES:
            raise invalid(
                f"logit_bias has {len(self.logit_bias)} tokens, but it may have at most "
                f"{MAX_BIASES}",
                "logit_bias",
            )
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise invalid(
                f"bad_words has {len(self.bad_words)} words, but it may have at most "
                f"{MAX_BAD_WORDS}",
                "bad_words",
            )
        if any(len(word) > MAX_STOP_CHARS for word in self.bad_words):
            raise invalid(
                f"bad_words has a word of more than {MAX_STOP_CHARS} characters", "bad_words"
            )
        allowed = self.allowed_token_ids
        try:
            params = SamplingParams(
                n=self.n,
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                repetition_penalty=self.repetition_penalty,
                logit_bias=_biases(self.logit_bias),
                allowed_token_ids=None if allowed is None else frozenset(allowed),
                bad_words=tuple(self.bad_words),
                structured_outputs=self._structured_outputs(),
                seed=_folded(self.seed),
                max_tokens=max_tokens,
                min_tokens=self.min_tokens,
                stop=tuple(stop),
                stop_token_ids=frozenset(self.stop_token_ids),
                include_stop_str_in_output=self.include_stop_str_in_output,
                ignore_eos=self.ignore_eos,
                skip_special_tokens=self.skip_special_tokens,
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs is not None,
                prompt_top_logprobs=prompt_logprobs or 0,
            )
            return resolve(params, tokenizer, grammars)
        except LooseleafError as error:
            # Its messages begin with the name of the parameter at fault.
            name, _, rest = str(error).partition(" ")
            name = names.get(name, name.replace("prompt_top_", "prompt_"))
            if name.startswith("structured_outputs"):
                field = self._form_field()
                raise invalid(str(error).replace("structured_outputs", field, 1), field) from None
            known = name in self.__struct_fields__
            raise invalid(f"{name} {rest}", name if known else None) from None

    def beam_params(self, params: SamplingParams, width: int) -> BeamSearchParams | None:
        """None where no beams are asked for. Raises ApiError for what beams cannot do."""
        if not self.use_beam_search:
            return None
        for name, asked in (
            ("logprobs", params.logprobs is not None),
            ("echo", getattr(self, "echo", False)),
            ("prompt_logprobs", self.prompt_logprobs is not None),
            ("logit_bias", params.logit_bias),
            ("presence_penalty", params.presence_penalty),
            ("frequency_penalty", params.frequency_penalty),
            ("repetition_penalty", params.repetition_penalty != 1),
        ):
            if asked:
                raise invalid(f"{name} does not go with use_beam_search: leave one out", name)
        try:
            return BeamSearchParams(
                beam_width=width,
                max_tokens=MAX_BEAM_TOKENS if params.max_tokens is None else params.max_tokens,
                length_penalty=self.length_penalty,
                early_stopping=self.early_stopping,
                ignore_eos=self.ignore_eos,
                stop_token_ids=params.stop_token_ids,
                stop=params.stop,
                constraints=params,
            )
        except LooseleafError as error:
            message = str(error).replace("beam_width is", "with use_beam_search, n is", 1)
            raise invalid(message, None) from None

    def _structured_outputs(self) -> StructuredOutputs | None:
        """What the output must be, in whichever of three ways it was said."""
        asked = [found for found in (self._of_format(), self._of_fields(), self._guided()) if found]
        if len(asked) > 1:
            raise invalid(
                "the form of the output is given more than once: use one of response_format, "
                "structured_outputs and the guided_ fields",
                "structured_outputs",
            )
        return asked[0] if asked else None

    def _form_field(self) -> str:
        """The field that says the form of the output, for errors about it."""
        guided = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
        fields = ("response_format", *guided)
        asked = (name for name in fields if getattr(self, name) is not None)
        return (
            "structured_outputs" if self.structured_outputs else next(asked, "structured_outputs")
        )

    def _of_format(self) -> StructuredOutputs | None:
        given = self.response_format
        if given is None or given.type == "text":
            return None
        if given.type == "json_object":
            return StructuredOutputs(json_object=True)
        if given.type == "json_schema" and given.json_schema is not None:
            schema = given.json_schema.schema
            if schema is False:
                raise invalid(
                    "response_format has the schema false, which nothing fits: send an object",
                    "response_format",
                )
            return StructuredOutputs(json=schema if isinstance(schema, dict) else "{}")
        raise invalid(
            "response_format must have the type text, json_object, or json_schema with a "
            "json_schema",
            "response_format",
        )

    def _of_fields(self) -> StructuredOutputs | None:
        given = self.structured_outputs
        if given is None:
            return None
        return StructuredOutputs(
            json=given.json,
            json_object=bool(given.json_object),
            regex=given.regex,
            choice=None if given.choice is None else tuple(given.choice),
            grammar=given.grammar,
        )

    def _guided(self) -> StructuredOutputs | None:
        """The spellings of before."""
        given = {
            "json": self.guided_json,
            "regex": self.guided_regex,
            "choice": None if self.guided_choice is None else tuple(self.guided_choice),
            "grammar": self.guided_grammar,
        }
        if all(value is None for value in given.values()):
            return None
        return StructuredOutputs(**given)  # type: ignore[arg-type]

    def extra_keys(self) -> ExtraKeys:
        return extra_keys_of(self.cache_salt)


def extra_keys_of(cache_salt: str | None) -> ExtraKeys:
    """What besides its tokens must be equal for a stored block to be shared."""
    if cache_salt is None:
        return ()
    if not 1 <= len(cache_salt) <= MAX_SALT_CHARS:
        raise invalid(
            f"cache_salt has {len(cache_salt)} characters, but it must have between 1 and "
            f"{MAX_SALT_CHARS}; leave it out to share the cache with everybody",
            "cache_salt",
        )
    return (("cache_salt", cache_salt),)


def _folded(seed: int | None) -> int | None:
    """Clients also send negative seeds; -1 is a common way to ask for none."""
    return None if seed is None or seed == -1 else seed % 2**63


def _biases(by_token: dict[str, float]) -> dict[int, float]:
    """JSON spells the ids as strings."""
    for token in by_token:
        if not (token.isascii() and token.removeprefix("-").isdecimal() and len(token) < 20):
            raise invalid(
                "logit_bias has a token that is no number: tokens are given by their ids",
                "logit_bias",
            )
    return {int(token): bias for token, bias in by_token.items()}


class ChatRequest(GenerationRequest, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: Integer | None = None
    logprobs: bool = False
    top_logprobs: Integer = 0
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    include_reasoning: bool = True


class CompletionRequest(GenerationRequest, kw_only=True):
    prompt: Any
    """A text, token ids, or a list of one of them: `completions.prompts_of` tells them apart."""
    logprobs: Integer | None = None
    echo: bool = False
    best_of: Integer | None = None


class PromptTokensDetails(Struct, kw_only=True):
    cached_tokens: int


class Usage(Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class PromptLogprob(Struct, kw_only=True):
    logprob: float
    rank: int | None
    decoded_token: str


class TopLogprob(Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, kw_only=True):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, kw_only=True):
    content: list[TokenLogprob]
    refusal: None = None


class CalledFunction(Struct, kw_only=True):
    """`arguments` is JSON text."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCall(Struct, kw_only=True):
    """Whole, or a piece of one: then `index` says of which, and the first has id and name."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: CalledFunction


class ChatMessage(Struct, kw_only=True):
    role: str = "assistant"
    content: str | None
    refusal: None = None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    metrics: RequestFigures | UnsetType = UNSET


class ChatDelta(Struct, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    metrics: RequestFigures | UnsetType = UNSET


class CompletionLogprobs(Struct, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class Completion(Struct, kw_only=True):
    """Whole answers and chunks of a stream have the same form."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    metrics: RequestFigures | UnsetType = UNSET


class ModelCard(Struct, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "looseleaf"
    root: str
    parent: None = None
    max_model_len: int


class ModelList(Struct, kw_only=True):
    object: str = "list"
    data: list[ModelCard]
