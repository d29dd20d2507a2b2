"""A real server on a loopback port, over an engine that makes tokens without a model."""

import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from running_server import Paced, RunningServer

from looseleaf.core.block_tables import BlockTables
from looseleaf.core.config import CacheConfig, SchedulerConfig
from looseleaf.core.hashing import BlockHasher
from looseleaf.core.scheduler import Scheduler
from looseleaf.engine.engine import Engine
from looseleaf.engine.kv_publisher import KVEventStream
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.service import EngineService
from looseleaf.executors.scripted import NextToken, ScriptedExecutor
from looseleaf.server.context import DEFAULT_MAX_BODY_BYTES, ServerContext
from looseleaf.server.keys import NO_KEYS, KeyRing
from looseleaf.server.lifecycle import Lifecycle
from looseleaf.server.limits import DEFAULT_LIMITS, Cors, Limits
from looseleaf.server.metrics import Metrics
from looseleaf.server.observing import DEFAULT_OBSERVING, Observing
from looseleaf.server.replies import DEFAULT_REPLIES, ReplySettings
from looseleaf.server.run import make_server
from looseleaf.server.tls import TlsRefresh
from looseleaf.server.tracing import Tracing
from looseleaf.studio.settings import DEFAULT_STUDIO, StudioSettings
from looseleaf.text.chat_template import ChatTemplate
from looseleaf.text.grammar import Grammars
from looseleaf.text.tokenizer import Tokenizer
from looseleaf.text.vocabulary import TokenType

BOS, END = 256, 257
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
MODEL = "tiny"


def _byte_characters() -> list[str]:
    kept = {*range(33, 127), *range(161, 173), *range(174, 256)}
    shifted = iter(range(256, 512))
    return [chr(byte if byte in kept else next(shifted)) for byte in range(256)]


def tiny_tokenizer() -> Tokenizer:
    """Ids 0 to 255 are the bytes; then a token to begin a text with, and one to end it. The one
    merge that the format demands is of bytes that no text has."""
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": [*_byte_characters(), "<|bos|>", "<|im_end|>", "Āā"],
            "tokenizer.ggml.token_type": [1] * 256 + [int(TokenType.CONTROL)] * 2 + [1],
            "tokenizer.ggml.merges": ["Ā ā"],
            "tokenizer.ggml.bos_token_id": BOS,
            "tokenizer.ggml.eos_token_id": END,
            "tokenizer.ggml.add_bos_token": True,
        }
    )


def alphabet(request_id: str, position: int) -> int:
    """a, b, c, ... by position; each sample of a prompt begins one letter later."""
    return ord("a") + (position + int(request_id.rpartition("/")[2])) % 26


class Says:
    """For `next_token`: every request is answered with this text, and then the end token."""

    def __init__(self, text: str) -> None:
        self._tokens = [*text.encode(), END]
        self._starts: dict[str, int] = {}

    def __call__(self, request_id: str, position: int) -> int:
        start = self._starts.setdefault(request_id, position)
        return self._tokens[min(position - start, len(self._tokens) - 1)]


StartServer = Callable[..., RunningServer]


@pytest.fixture
def says() -> type[Says]:
    return Says


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    running: list[RunningServer] = []

    def start(
        *,
        num_blocks: int = 256,
        num_pinnable: int = 0,
        block_size: int = 4,
        max_model_len: int = 512,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 64,
        next_token: NextToken | None = alphabet,
        step_seconds: float = 0.0,
        template: str | None = TEMPLATE,
        model_names: tuple[str, ...] = (MODEL,),
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        access_log: bool = False,
        replies: ReplySettings = DEFAULT_REPLIES,
        keys: KeyRing = NO_KEYS,
        limits: Limits = DEFAULT_LIMITS,
        cors: Cors | None = None,
        observing: Observing = DEFAULT_OBSERVING,
        policy: str = "fcfs",
        sockets: list[socket.socket] | None = None,
        kv_events: KVEventStream | None = None,
        tracing: Tracing | None = None,
        tls: ssl.SSLContext | None = None,
        refresh_tls: TlsRefresh | None = None,
        studio: StudioSettings = DEFAULT_STUDIO,
    ) -> RunningServer:
        tokenizer = tiny_tokenizer()
        scheduler = Scheduler(
            SchedulerConfig(max_model_len, max_num_seqs, max_num_batched_tokens, policy=policy),
            BlockTables(
                CacheConfig(num_blocks, block_size, num_pinnable=num_pinnable),
                BlockHasher(block_size, b"test"),
                None if kv_events is None else kv_events.log,
            ),
        )
        executor = Paced(
            ScriptedExecutor(num_blocks, block_size, next_token, vocab_size=tokenizer.vocab_size),
            step_seconds,
        )
        memory = MemoryPlan(num_blocks, block_size, 1024, max_model_len)
        service = EngineService(
            Engine(scheduler, executor), tokenizer, kv_sample=observing.kv_sample
        )
        if kv_events is not None:
            service.watchers.append(kv_events.watch)
        context = ServerContext(
            Lifecycle(service),
            service,
            tokenizer,
            ChatTemplate(template, bos_token="<|bos|>", eos_token="<|im_end|>"),
            Grammars(tokenizer),
            model_names,
            memory,
            Metrics(model_names[0], memory, legacy_names=observing.legacy_metric_names),
            max_body_bytes,
            replies,
            keys,
            limits,
            cors,
            tracing,
            studio,
        )
        server = make_server(
            context,
            port=0,
            shutdown_seconds=5,
            access_log=access_log,
            tls=tls,
            refresh_tls=refresh_tls,
        )
        result = RunningServer(context, executor, server, sockets=sockets)
        result.start()
        running.append(result)
        return result

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def server(start_server: StartServer) -> RunningServer:
    return start_server()


@pytest.fixture
def chat_body() -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
