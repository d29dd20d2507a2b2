"""News between tasks of one event loop."""

import asyncio

from looseleaf.engine.mailbox import Mailbox


def test_all_that_came_is_taken_at_once_in_its_order() -> None:
    async def check() -> None:
        box = Mailbox[int]()
        for number in (3, 1, 2):
            box.put(number)
        assert len(box) == 3
        assert await box.take() == [3, 1, 2]
        assert not box

    asyncio.run(check())


def test_a_reader_waits_and_one_that_was_cancelled_loses_nothing() -> None:
    async def check() -> None:
        box = Mailbox[int]()
        reader = asyncio.create_task(box.take())
        await asyncio.sleep(0)
        assert not reader.done()
        reader.cancel()
        box.put(1)  # before the reader has noticed
        await asyncio.gather(reader, return_exceptions=True)
        assert reader.cancelled()
        box.put(2)
        assert await box.take() == [1, 2]

        later = asyncio.create_task(box.take())
        await asyncio.sleep(0)
        box.put(3)
        box.put(4)
        assert await later == [3, 4]

    asyncio.run(check())
