"""One turn of a conversation, whatever the endpoint: from messages to a prompt, and from what the
model says to content, reasoning and calls of tools.

An endpoint puts its request into a `ChatRequest` and its messages into OpenAI's form; the rest is
the same for all of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from looseleaf.core.hashing import ExtraKeys
from looseleaf.core.request import FinishReason
from looseleaf.engine.beams import BeamSearchParams
from looseleaf.engine.groups import Delta, Sample
from looseleaf.sampling.params import SamplingParams
from looseleaf.server.context import ServerContext
from looseleaf.server.errors import invalid
from looseleaf.server.generation import Generation
from looseleaf.server.protocol import ChatRequest
from looseleaf.text.reply import PlainReply, ReplyParser, Said


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
    newer = fields.max_completion_tokens is not None
    params = fields.sampling_params(
        context.tokenizer,
        context.grammars,
        max_tokens=fields.max_completion_tokens if newer else fields.max_tokens,
        logprobs=fields.top_logprobs if fields.logprobs else None,
        names={
            "logprobs": "top_logprobs",
            "max_tokens": "max_completion_tokens" if newer else "max_tokens",
            **names,
        },
    )
    extra_keys = fields.extra_keys()
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
    if fields.tools:
        raise invalid("tools is not supported: leave it out", "tools")
    if fields.tool_choice not in (None, "none", "auto"):
        raise invalid("tool_choice is not supported: leave it out", "tool_choice")
    prompt = context.chat_template.render(
        fields.messages,
        add_generation_prompt=(
            not fields.continue_final_message
            if fields.add_generation_prompt is None
            else fields.add_generation_prompt
        ),
        continue_final_message=fields.continue_final_message,
        extra=fields.chat_template_kwargs,
    )
    context.check_length(prompt, names.get("messages", "messages"))
    if fields.add_special_tokens is False:
        token_ids = context.tokenizer.encode(prompt, add_special=False, parse_special=True)
    else:
        token_ids = context.tokenizer.encode_chat(prompt)
    return Turn(
        token_ids,
        params,
        extra_keys,
        fields.beam_params(params, fields.n),
        fields.priority,
        fields.continue_final_message,
        PlainReply,
    )
