"""The whole way with a real model."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from looseleaf.engine.build import build
from looseleaf.engine.settings import EngineSettings
from looseleaf.server.context import ServerContext
from looseleaf.server.run import make_server


@pytest.mark.model
def test_four_chats_with_smollm2(smollm2_path: Path) -> None:
    stack = build(
        EngineSettings(model=str(smollm2_path), max_model_len=256, kv_cache_memory=64 * 2**20)
    )
    context = ServerContext.from_stack(stack, ["smollm2"])
    server = make_server(context, port=0)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        while not server.urls:
            assert thread.is_alive()
            thread.join(0.01)
        with (
            openai.OpenAI(
                base_url=f"{server.urls[0]}/v1", api_key="none", max_retries=0, timeout=200
            ) as client,
            ThreadPoolExecutor(4) as pool,
        ):

            def ask(country: str, salt: str) -> str:
                question = f"What is the capital of {country}? Answer with its name."
                answer = client.chat.completions.create(
                    model="smollm2",
                    messages=[{"role": "user", "content": question}],
                    temperature=0,
                    max_tokens=8,
                    extra_body={"cache_salt": salt},
                )
                return answer.choices[0].message.content or ""

            countries = ["France", "Italy", "Japan", "Spain"]
            together = list(pool.map(ask, countries, ["shared"] * 4))
            alone = [ask(country, country) for country in countries[:2]]
        assert "Paris" in together[0]
        assert together[:2] == alone
    finally:
        server.should_exit = True
        thread.join(60)
    assert not thread.is_alive()
