"""One feed for many: when it begins and ends, and who is let go."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import pytest
from bookkeeping import Bench, make_request

from looseleaf.core.errors import LooseleafError
from looseleaf.engine.engine import Engine
from looseleaf.studio.frames import Delta, Snapshot, decode
from looseleaf.studio.hub import MAX_VIEWERS, Hub, TooManyViewersError
from looseleaf.studio.picture import Picture

T = TypeVar("T")


class Owner:
    """Stands for an engine's owner: a call is a turn in which a step is made first."""

    def __init__(self) -> None:
        bench = Bench(num_blocks=64, block_size=4)
        bench.tables.events = None
        bench.tables.pool.events = None
        self.engine = Engine(bench.scheduler, bench.executor)
        self.num_added = 0
        self.failure: Exception | None = None

    async def call(self, function: Callable[[Engine], T], /) -> T:
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        if not self.engine.has_work:
            self.num_added += 1
            self.engine.add(make_request(f"r{self.num_added}", 6, max_tokens=20))
        self.engine.step()
        return function(self.engine)

    @property
    def watched(self) -> bool:
        return self.engine.scheduler.allocator.events is not None


@asynccontextmanager
async def open_hub(owner: Owner) -> AsyncIterator[Hub]:
    hub = Hub(owner.call, interval=0.001)
    try:
        yield hub
    finally:
        await hub.close()
    assert not owner.watched


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def test_each_viewer_has_a_snapshot_first_and_every_delta_after_it() -> None:
    owner = Owner()

    async def look(hub: Hub, num_frames: int) -> None:
        picture: Picture | None = None
        async with aclosing(hub.watch()) as frames:
            async for line in frames:
                frame = decode(line)
                if picture is None:
                    assert isinstance(frame, Snapshot)
                    picture = Picture(frame)
                else:
                    assert isinstance(frame, Delta)
                    picture.apply(frame)
                num_frames -= 1
                if not num_frames:
                    return

    async with open_hub(owner) as hub:
        await asyncio.gather(*(look(hub, 10 + 7 * i) for i in range(5)))
        await until(lambda: not owner.watched)
        assert hub.num_viewers == 0
        await look(hub, 5)  # it begins again


async def test_who_does_not_read_is_let_go_and_holds_up_nobody() -> None:
    owner = Owner()
    async with open_hub(owner) as hub:
        slow, quick = hub.watch(max_waiting=5), hub.watch()
        async with aclosing(slow), aclosing(quick):
            assert isinstance(decode(await anext(slow)), Snapshot)
            seen = 0
            async for _ in quick:
                seen += 1
                if seen == 40:
                    break
            assert hub.num_viewers == 1
            left = [frame async for frame in slow]
            assert len(left) <= 5
        await until(lambda: not owner.watched)


async def test_more_than_so_many_are_refused() -> None:
    owner = Owner()
    async with open_hub(owner) as hub:
        viewers = [hub.watch() for _ in range(MAX_VIEWERS)]
        with pytest.raises(TooManyViewersError, match=str(MAX_VIEWERS)):
            hub.watch()
        for viewer in viewers:
            await anext(viewer)
            await viewer.aclose()
        async with aclosing(hub.watch()) as frames:
            await anext(frames)


@pytest.mark.parametrize("failure", [LooseleafError("it has ended"), RuntimeError("a defect")])
async def test_viewers_end_with_the_engine(failure: Exception) -> None:
    owner = Owner()
    hub = Hub(owner.call, interval=0.001)
    async with aclosing(hub.watch()) as frames:
        await anext(frames)
        owner.failure = failure
        async with asyncio.timeout(10):
            [frame async for frame in frames]  # it ends
    assert hub.num_viewers == 0
    await hub.close()


async def test_who_comes_while_the_last_one_leaves_is_served() -> None:
    owner = Owner()
    async with open_hub(owner) as hub:
        for _ in range(30):
            async with aclosing(hub.watch()) as frames, asyncio.timeout(10):
                await anext(frames)


async def test_what_was_is_kept_for_whoever_comes_while_somebody_watches() -> None:
    owner = Owner()
    hub = Hub(owner.call, interval=0.001, linger=0.2)
    try:
        async with aclosing(hub.watch()) as frames:
            seen = [decode(await anext(frames)) for _ in range(20)]
        async with aclosing(hub.watch(past=True)) as late:
            told = [decode(await anext(late)) for _ in range(30)]
            assert told[: len(seen)] == seen  # also after the last one has left
            picture = Picture(told[0])
            for frame in told[1:]:
                picture.apply(frame)
        async with aclosing(hub.watch()) as frames:
            assert decode(await anext(frames)).seq > 0
        await until(lambda: not owner.watched)
        async with aclosing(hub.watch(past=True)) as frames:
            assert decode(await anext(frames)).seq <= 1  # it began again
    finally:
        await hub.close()
