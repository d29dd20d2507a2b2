"""A server that is killed in the middle of its work, again and again, and goes on where it was.

Three times as a rule; LOOSELEAF_CRASHES=50 says otherwise.
"""

import asyncio
import os
import random
from collections.abc import Awaitable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import MODEL, SECONDS, Served, serving

from looseleaf import LLM, SamplingParams
from looseleaf.compiled import compiled
from looseleaf.core.hashing import BlockHasher
from looseleaf.engine.tiers import space_secret
from looseleaf.tiers.block_file import BlockFile

CRASHES = int(os.environ.get("LOOSELEAF_CRASHES", "3"))

pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(120 + 60 * CRASHES),
    pytest.mark.skipif(compiled() is None, reason="the compiled part is not installed"),
]

CLIENTS = 200
MAX_TOKENS = 8
BLOCK = 16
DISK_BYTES = 128 * 2**20


def prompts() -> list[list[int]]:
    """Of eight families with a beginning in common each, as token ids."""
    rng = random.Random(1)

    def ids(count: int) -> list[int]:
        return [rng.randrange(1000, 40_000) for _ in range(count)]

    beginnings = [ids(160) for _ in range(8)]
    return [beginnings[i % 8] + ids(rng.randrange(5, 60)) for i in range(CLIENTS)]


def server(folder: Path, log: Path) -> AbstractContextManager[Served]:
    return serving(
        log,
        *("--max-model-len", "512", "--kv-cache-memory", "48MiB"),
        *("--kv-disk", str(folder), "--kv-disk-size", str(DISK_BYTES)),
    )


async def crowd(url: str, asked: list[list[int]], kill: Any, moment: Awaitable[None]) -> int:
    """All at once; how many were answered before `kill` was called, at that moment."""
    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(timeout=SECONDS, limits=limits) as client:

        async def ask(prompt: list[int]) -> bool:
            try:
                response = await client.post(f"{url}/v1/completions", json=body(prompt))
            except httpx.HTTPError:
                return False
            return response.status_code == 200

        tasks = [asyncio.create_task(ask(prompt)) for prompt in asked]
        await moment
        kill()
        return sum(await asyncio.gather(*tasks))


def body(prompt: list[int]) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }


def stored(folder: Path) -> tuple[set[bytes], bytes]:
    """The hashes of the blocks in the folder, and where their chains start."""
    file = BlockFile(folder)
    try:
        (space,) = file.spaces()
        hashes = {known.hash for known in file.known(file.space(space.name))}
        return hashes, space_secret(space.name)
    finally:
        file.close()


async def something_stored(folder: Path) -> None:
    """Over once blocks have come to the disk, and then some time for more."""
    file = BlockFile(folder)
    try:
        async with asyncio.timeout(SECONDS):
            while not file.spaces():
                await asyncio.sleep(0.1)
    finally:
        file.close()
    await asyncio.sleep(3)


def num_findable(prompt: list[int], hashes: set[bytes], secret: bytes) -> int:
    """Of the prompt's tokens: in blocks that are stored from the first one on."""
    hasher, keys = BlockHasher(BLOCK, secret), list[Any]()
    hasher.extend(hasher.root(()), keys, prompt)
    count = 0
    while count < (len(prompt) - 1) // BLOCK and keys[count].hash in hashes:
        count += 1
    return count * BLOCK


def test_a_killed_server_goes_on_where_it_was(smollm2_path: Path, tmp_path: Path) -> None:
    asked = prompts()
    greedy = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    with LLM(MODEL, max_model_len=512) as llm:
        expected = [out.outputs[0].text for out in llm.generate(asked, greedy, use_tqdm=False)]
    folder, log = tmp_path / "kv", tmp_path / "log"
    rng = random.Random(os.environ.get("LOOSELEAF_CRASH_SEED", "2"))
    most_found = 0
    for crash in range(CRASHES):
        with server(folder, log) as served:
            moment = asyncio.sleep(rng.uniform(0.1, 5)) if crash else something_stored(folder)
            order = rng.sample(asked, len(asked))
            asyncio.run(crowd(served.url, order, served.process.kill, moment))
        assert sum(path.stat().st_size for path in folder.iterdir()) <= DISK_BYTES
        hashes, secret = stored(folder)
        with server(folder, log) as served, httpx.Client(timeout=SECONDS) as client:
            for index in rng.sample(range(CLIENTS), 6):
                prompt = asked[index]
                answer = client.post(f"{served.url}/v1/completions", json=body(prompt)).json()
                assert answer["choices"][0]["text"] == expected[index]
                cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                found = num_findable(prompt, hashes, secret)
                assert cached >= found
                most_found = max(most_found, found)
            served.process.terminate()
            assert served.process.wait(SECONDS) == 0
        assert sum(path.stat().st_size for path in folder.iterdir()) <= DISK_BYTES
        assert "damaged" not in log.read_text()
    assert most_found >= 160
