"""What a reply may be and how it is read: tools, reasoning and the form that was asked for, put
together."""

from dataclasses import dataclass, replace
from typing import Self

from looseleaf.core.errors import LooseleafError
from looseleaf.engine.params import resolve
from looseleaf.sampling.params import SamplingParams, StructuredOutputs
from looseleaf.server.context import ServerContext
from looseleaf.server.errors import invalid
from looseleaf.server.protocol import ChatRequest
from looseleaf.server.tools import ToolUse
from looseleaf.text.call_replies import CallRules
from looseleaf.text.dialects import Dialect
from looseleaf.text.reasoning import BEGIN, END, ReasoningReply
from looseleaf.text.reply import PlainReply, ReplyParser
from looseleaf.text.turn_grammar import (
    Thinking,
    can_be_part,
    can_be_strict,
    control_token,
    strict_grammar,
    turn_grammar,
)


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """`answer` is the form that was asked of it, where it is not calls."""

    use: ToolUse | None
    dialect: Dialect
    answer: StructuredOutputs | None
    thinking: Thinking
    streamed: bool
    shows_reasoning: bool

    @classmethod
    def of(
        cls,
        context: ServerContext,
        fields: ChatRequest,
        use: ToolUse | None,
        dialect: Dialect,
        prompt: str,
        answer: StructuredOutputs | None,
    ) -> Self:
        """Raises ApiError for tools that do not go with the rest of the request."""
        if use is not None and not use.forced:
            if not context.replies.auto_tool_choice:
                raise invalid(
                    "tools with tool_choice auto are off here: force a call with required or a "
                    "named function, or start the server with --enable-auto-tool-choice",
                    "tool_choice",
                )
            if answer is not None and not can_be_part(answer):
                raise invalid(
                    "an answer of a regex or grammar does not go with tools: leave one of them out",
                    "tools",
                )
        thinking = _thinking(context.replies.reasoning_parser, fields, prompt)
        if answer is not None and not can_be_part(answer):
            thinking = "never"  # the grammar has no place for it
        return cls(
            use,
            dialect,
            None if use is not None and use.forced else answer,
            thinking,
            fields.stream,
            fields.include_reasoning,
        )

    def new_parser(self) -> ReplyParser:
        parser: ReplyParser = PlainReply()
        if self.use is not None:
            names = frozenset(function.name for function in self.use.functions)
            rules = CallRules(names, self.streamed, self.use.most, self.dialect.new_id)
            parser = self.dialect.parser(rules, forced=self._is_constrained)
        if self.thinking != "never":
            thinks = self.thinking == "first"
            parser = ReasoningReply(parser, thinks=thinks, shown=self.shows_reasoning)
        return parser

    def constrained(self, context: ServerContext, params: SamplingParams) -> SamplingParams:
        """`params` with the grammar that the reply must follow, if it must follow one, and so that
        the marks of calls show in the text."""
        use = self.use
        if use is not None and any(
            control_token(context.tokenizer, mark) is not None
            for mark in (self.dialect.marks.opening, self.dialect.marks.closing)
            if mark
        ):
            params = replace(params, skip_special_tokens=False)
        grammar = None
        if self._is_constrained and (use is not None or self.thinking != "never"):
            grammar = turn_grammar(
                context.tokenizer,
                dialect=self.dialect,
                functions=() if use is None else use.functions,
                most=None if use is None else use.most,
                answer=self.answer,
                thinking=self.thinking,
            )
        elif (
            use is not None
            and can_be_strict(self.dialect)
            and any(function.strict for function in use.functions)
        ):
            grammar = strict_grammar(self.dialect, use.functions)
        if grammar is None:
            return params
        asked = StructuredOutputs(grammar=grammar)
        try:
            params = replace(params, structured_outputs=asked, grammar=None)
            return resolve(params, context.tokenizer, context.grammars)
        except LooseleafError as error:
            message = str(error).removeprefix("structured_outputs: ")
            about = "tools" if use is not None else "response_format"
            raise invalid(f"{about}: {message}", about) from None

    @property
    def _is_constrained(self) -> bool:
        """Whether the reply is of a grammar from its beginning to its end."""
        return self.answer is not None or (self.use is not None and self.use.forced)


def _thinking(parser: str, fields: ChatRequest, prompt: str) -> Thinking:
    """A prompt that ends within the reasoning, or right after it, says so. Where it says nothing,
    the reply of a deepseek_r1 begins with reasoning, with `<think>` or without."""
    end = prompt.rstrip()
    if parser == "none" or end.endswith(END):
        return "never"
    if end.endswith(BEGIN):
        return "first"
    if fields.continue_final_message:
        return "never"
    return "first" if parser == "deepseek_r1" else "maybe"
