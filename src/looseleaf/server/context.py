"""What the routes of one server share."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from looseleaf.core.hashing import ExtraKeys
from looseleaf.engine.build import Stack
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.pins import EVERYBODY, Holder
from looseleaf.engine.service import EngineService
from looseleaf.server.answers import Answers
from looseleaf.server.call import current
from looseleaf.server.connections import Connections
from looseleaf.server.errors import ApiError
from looseleaf.server.gate import Gate
from looseleaf.server.keys import ANYBODY, NO_KEYS, KeyRing
from looseleaf.server.lifecycle import Lifecycle
from looseleaf.server.limits import DEFAULT_LIMITS, Cors, Limits
from looseleaf.server.metrics import Metrics
from looseleaf.server.observing import DEFAULT_OBSERVING, Observing
from looseleaf.server.replies import DEFAULT_REPLIES, ReplySettings
from looseleaf.server.responses.store import ResponseStore
from looseleaf.server.tracing import Tracing
from looseleaf.studio.settings import DEFAULT_STUDIO, StudioSettings
from looseleaf.text.chat_template import ChatTemplate
from looseleaf.text.grammar import Grammars
from looseleaf.text.tokenizer import Tokenizer

DEFAULT_MAX_BODY_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class ServerContext:
    """`model_names` are the names a request may use for the one model; metrics have the first."""

    lifecycle: Lifecycle
    service: EngineService
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    grammars: Grammars
    model_names: tuple[str, ...]
    memory: MemoryPlan
    metrics: Metrics
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    replies: ReplySettings = DEFAULT_REPLIES
    keys: KeyRing = NO_KEYS
    limits: Limits = DEFAULT_LIMITS
    cors: Cors | None = None
    tracing: Tracing | None = None
    studio: StudioSettings = DEFAULT_STUDIO
    answers: Answers = field(default_factory=Answers)
    responses: ResponseStore = field(default_factory=ResponseStore)
    created: int = field(default_factory=lambda: int(time.time()))
    gate: Gate = field(init=False)
    connections: Connections = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "connections", Connections(self.limits))
        gate = Gate(
            self.service.clock,
            max_requests=self.limits.max_queued_requests,
            max_tokens=self.limits.queued_tokens(self.memory.num_tokens),
            max_model_len=self.memory.max_model_len,
        )
        object.__setattr__(self, "gate", gate)

    @classmethod
    def from_stack(
        cls,
        stack: Stack,
        model_names: Sequence[str] = (),
        *,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        replies: ReplySettings = DEFAULT_REPLIES,
        keys: KeyRing = NO_KEYS,
        limits: Limits = DEFAULT_LIMITS,
        cors: Cors | None = None,
        tracing: Tracing | None = None,
        observing: Observing = DEFAULT_OBSERVING,
        studio: StudioSettings = DEFAULT_STUDIO,
    ) -> "ServerContext":
        """Without `model_names` the model is served under its own."""
        names = tuple(model_names) or (stack.model_config.name,)
        service = EngineService(stack.engine, stack.tokenizer, kv_sample=observing.kv_sample)
        return cls(
            Lifecycle(service),
            service,
            stack.tokenizer,
            stack.chat_template,
            stack.grammars,
            names,
            stack.memory,
            Metrics(names[0], stack.memory, legacy_names=observing.legacy_metric_names),
            max_body_bytes,
            replies,
            keys,
            limits,
            cors,
            tracing,
            studio,
        )

    def cache_keys(self, extra_keys: ExtraKeys) -> ExtraKeys:
        """With whose call it is, where tenants do not share what is cached."""
        name = self.pin_holder().name
        return (("api_key", name), *extra_keys) if name else extra_keys

    def pin_holder(self) -> Holder:
        """Whose call it is, where tenants do not share what is cached."""
        tenant = current().tenant
        if not self.limits.isolate_cache or tenant is ANYBODY:
            return EVERYBODY
        return Holder(tenant.label, self.keys.share(tenant))

    def check_length(self, text: str, param: str) -> None:
        """Raises ApiError for a text so long that it need not be tokenized to be refused."""
        at_least = len(text) // self.tokenizer.longest_token_bytes
        limit = self.memory.max_model_len
        if at_least > limit:
            raise ApiError(
                400,
                f"the prompt has {len(text)} characters, which are {at_least} tokens or more, but "
                f"prompt and output together may have at most {limit} (max_model_len): shorten it",
                param=param,
                code="context_length_exceeded",
            )

    def check_model(self, name: str) -> None:
        """Raises ApiError 404 for a model that is not served; its name is not repeated."""
        if name not in self.model_names:
            raise ApiError(
                404,
                f"the model does not exist here; served: {', '.join(self.model_names)}",
                param="model",
                code="model_not_found",
            )
