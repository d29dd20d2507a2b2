"""One turn of a conversation, whatever the endpoint: from messages to a prompt, and from what the
model says to content, reasoning and calls of tools.

An endpoint puts its request into a `ChatRequest` and its messages into OpenAI's form; the rest is
the same for all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from looseleaf.core.hashing import ExtraKeys
from looseleaf.core.request import FinishReason
from looseleaf.engine.beams import BeamSearchParams
from looseleaf.engine.groups import Delta, Sample
from looseleaf.sampling.params import SamplingParams
from looseleaf.server.context import ServerContext
from looseleaf.server.details import last_text, last_tokens, prompt_limit
from looseleaf.server.errors import invalid
from looseleaf.server.generation import Generation
from looseleaf.server.plan import ReplyPlan
from looseleaf.server.protocol import ChatRequest
from looseleaf.server.tools import ToolUse, tool_use
from looseleaf.text.dialects import Dialect
from looseleaf.text.reply import ReplyParser, Said
from looseleaf.text.tool_prompt import knows_tools, with_tools_as_text


@dataclass(frozen=True, slots=True)
class Turn:
    """What goes to the engine, and how to read what comes back: `new_parser` is called once for
    each choice."""

    token_ids: list[int]
    params: SamplingParams
    extra_keys: ExtraKeys
    beams: BeamSearchParams | None
    priority: int
    continues_text: bool
    timeout: float | None
    new_parser: Callable[[], ReplyParser]

    def start(self, context: ServerContext) -> Generation:
        """Submit it. Raises as `Generation` does."""
        return Generation(
            context,
            [self.token_ids],
            self.params,
            priority=self.priority,
            extra_keys=self.extra_keys,
            continues_text=self.continues_text,
            beams=self.beams,
            timeout=self.timeout,
        )


@dataclass(slots=True)
class Call:
    """A whole tool call; `arguments` is JSON text."""

    call_id: str
    name: str
    arguments: str


@dataclass(slots=True)
class Reply:
    """A whole choice, as far as it has come. `finish_reason` is OpenAI's; None until the end."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, said: Said) -> None:
        self.content += said.content
        self.reasoning += said.reasoning
        for delta in said.calls:
            if delta.call_id is not None:
                self.calls.append(Call(delta.call_id, delta.name or "", ""))
            self.calls[delta.index].arguments += delta.arguments


class Replies:
    """Reads the choices of one turn while they come."""

    def __init__(self, turn: Turn) -> None:
        self._new_parser = turn.new_parser
        self._parsers: dict[int, ReplyParser] = {}
        self._has_calls: set[int] = set()

    def feed(self, index: int, delta: Delta) -> Said:
        """What the choice `index` gained; with the last delta, also what was held back."""
        if index not in self._parsers:
            self._parsers[index] = self._new_parser()
        parser = self._parsers[index]
        said = parser.feed(delta.text) if delta.text else Said()
        if delta.finish_reason is not None:
            rest = parser.end()
            said = Said(
                said.content + rest.content,
                said.reasoning + rest.reasoning,
                said.calls + rest.calls,
            )
        if said.calls:
            self._has_calls.add(index)
        return said

    def finish_reason(self, index: int, reason: FinishReason | None) -> str | None:
        """OpenAI's name for how a choice ended that ended for `reason`: `tool_calls` if it came to
        its end and has some."""
        if reason is FinishReason.STOP and index in self._has_calls:
            return "tool_calls"
        return reason and reason.value


def whole_reply(turn: Turn, sample: Sample) -> Reply:
    """A choice that has ended."""
    replies = Replies(turn)
    reply = Reply()
    delta = Delta(0, sample.text, (), (), sample.finish_reason or FinishReason.ABORT)
    reply.add(replies.feed(0, delta))
    reply.finish_reason = replies.finish_reason(0, sample.finish_reason)
    return reply


def prepare_turn(
    context: ServerContext,
    fields: ChatRequest,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Turn:
    """Everything up to the engine. Waits for nothing and may run in any thread.

    `names` are the endpoint's names for fields of ChatRequest that it calls otherwise: errors use
    them. Raises ApiError, and LooseleafError for messages that make no prompt.
    """
    context.check_model(fields.model)
    if fields.top_logprobs and not fields.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    use = tool_use(fields.tools, fields.tool_choice, parallel=fields.parallel_tool_calls)
    newer = fields.max_completion_tokens is not None
    params = fields.sampling_params(
        context.tokenizer,
        context.grammars,
        max_tokens=fields.max_completion_tokens if newer else fields.max_tokens,
        logprobs=fields.top_logprobs if fields.logprobs else None,
        prompt_logprobs=fields.prompt_logprobs,
        names={
            "logprobs": "top_logprobs",
            "max_tokens": "max_completion_tokens" if newer else "max_tokens",
            **names,
        },
    )
    extra_keys = fields.extra_keys()
    template = context.chat_template.source(has_tools=use is not None)
    dialect = context.replies.dialect(template)
    prompt = _prompt(context, fields, use, None if knows_tools(template) else dialect)
    token_ids = _tokens(context, fields, prompt, names.get("messages", "messages"))
    plan = ReplyPlan.of(context, fields, use, dialect, prompt, params.structured_outputs)
    params = plan.constrained(context, params)
    return Turn(
        token_ids,
        params,
        extra_keys,
        fields.beam_params(params, fields.n),
        fields.priority,
        fields.continue_final_message,
        fields.timeout,
        plan.new_parser,
    )


def _tokens(context: ServerContext, fields: ChatRequest, prompt: str, param: str) -> list[int]:
    asked = fields.max_completion_tokens
    limit = prompt_limit(context, fields, fields.max_tokens if asked is None else asked)
    if limit is None:
        context.check_length(prompt, param)
    tokenizer = context.tokenizer
    text = last_text(tokenizer, prompt, limit)
    if fields.add_special_tokens is False:
        token_ids = tokenizer.encode(text, add_special=False, parse_special=True)
    else:
        token_ids = tokenizer.encode_chat(text)
    return last_tokens(token_ids, limit, tokenizer.bos_token_id)


def _prompt(
    context: ServerContext, fields: ChatRequest, use: ToolUse | None, dialect: Dialect | None
) -> str:
    """With a `dialect`, tools are told in the messages, because the template knows none."""
    if "chat_template" in fields.chat_template_kwargs:
        raise invalid(
            "chat_template is not supported: the template is the model's; a request cannot bring "
            "its own",
            "chat_template_kwargs",
        )
    if fields.continue_final_message and fields.add_generation_prompt:
        raise invalid(
            "continue_final_message and add_generation_prompt exclude each other: the last message "
            "is either complete or to be continued",
            "continue_final_message",
        )
    tools = [] if use is None else use.tools
    messages: Sequence[Mapping[str, Any]] = fields.messages
    if dialect is not None:
        messages, tools = with_tools_as_text(messages, tools, dialect), []
    return context.chat_template.render(
        messages,
        add_generation_prompt=(
            not fields.continue_final_message
            if fields.add_generation_prompt is None
            else fields.add_generation_prompt
        ),
        continue_final_message=fields.continue_final_message,
        tools=tools,
        extra=fields.chat_template_kwargs,
    )
