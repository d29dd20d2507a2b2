"""A server that makes tokens without a model, for what the server itself costs."""

import logging
import time

from looseleaf.core.block_tables import BlockTables
from looseleaf.core.config import CacheConfig, SchedulerConfig
from looseleaf.core.hashing import BlockHasher
from looseleaf.core.scheduler import Scheduler
from looseleaf.core.step import Step, StepResult
from looseleaf.engine.engine import Engine
from looseleaf.engine.llm import LLM
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.service import EngineService
from looseleaf.server.context import ServerContext
from looseleaf.server.lifecycle import Lifecycle
from looseleaf.server.metrics import Metrics
from looseleaf.server.run import make_server

BLOCK_SIZE, NUM_BLOCKS, MAX_MODEL_LEN = 16, 8192, 1024
WORD = 3000
"""The id of a token that is drawn every time."""


STEP_SECONDS = 0.001
"""What a step takes, without computing. One that took no time would hold Python's lock nearly all
the while, and the event loop, which comes late then, sends many tokens in one piece."""


class Scripted:
    """Draws one token for everybody."""

    def execute(self, step: Step) -> StepResult:
        time.sleep(STEP_SECONDS)
        return StepResult(step.step_id, (WORD,) * sum(len(s.samples) for s in step.sequences))

    def read_block(self, block_id: int) -> bytes:
        return b""

    def write_block(self, block_id: int, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    with LLM() as llm:
        stack = llm.stack
    scheduler = Scheduler(
        SchedulerConfig(MAX_MODEL_LEN, 128, 2048),
        BlockTables(CacheConfig(NUM_BLOCKS, BLOCK_SIZE), BlockHasher(BLOCK_SIZE, b"bench")),
    )
    service = EngineService(Engine(scheduler, Scripted()), stack.tokenizer)
    memory = MemoryPlan(NUM_BLOCKS, BLOCK_SIZE, 1024, MAX_MODEL_LEN)
    context = ServerContext(
        Lifecycle(service),
        service,
        stack.tokenizer,
        stack.chat_template,
        stack.grammars,
        ("m",),
        memory,
        Metrics("m", memory),
    )
    make_server(context, port=0).run()


if __name__ == "__main__":
    main()
