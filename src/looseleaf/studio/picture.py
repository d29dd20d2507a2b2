"""What a viewer sees: a snapshot, and the deltas after it."""

from looseleaf.studio.frames import Block, Counters, Frame, Request, Snapshot, Table, Tiers


class Picture:
    """The state of a feed at one of its frames. `requests` and `tables` are by number, and of those
    that have not ended; `blocks` are those that are not free."""

    seq: int
    time: float
    model: str
    block_size: int
    block_bytes: int
    num_blocks: int
    blocks: dict[int, Block]
    requests: dict[int, Request]
    tables: dict[int, list[int]]
    counters: Counters
    tiers: Tiers | None

    def __init__(self, start: Snapshot) -> None:
        self._begin(start)

    def apply(self, frame: Frame) -> None:
        """Raises ValueError for a delta that does not follow."""
        if isinstance(frame, Snapshot):
            self._begin(frame)
            return
        if frame.seq != self.seq + 1:
            raise ValueError(f"frame {frame.seq} comes after frame {self.seq}")
        self.seq, self.time = frame.seq, frame.time
        for block in frame.blocks:
            if block.free:
                self.blocks.pop(block.block_id, None)
            else:
                self.blocks[block.block_id] = block
        for table in frame.tables:
            self.tables.setdefault(table.number, [])[table.start :] = table.block_ids
        for news in frame.requests:
            self._update(news)
        self.counters = frame.counters or self.counters
        self.tiers = frame.tiers or self.tiers

    def snapshot(self) -> Snapshot:
        """What a snapshot would say that was taken at this frame."""
        return Snapshot(
            seq=self.seq,
            time=self.time,
            wall_time=self._epoch + self.time,
            model=self.model,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            block_bytes=self.block_bytes,
            blocks=list(self.blocks.values()),
            requests=list(self.requests.values()),
            tables=[Table(n, 0, tuple(blocks)) for n, blocks in self.tables.items() if blocks],
            counters=self.counters,
            tiers=self.tiers,
        )

    def _begin(self, frame: Snapshot) -> None:
        self.seq, self.time = frame.seq, frame.time
        self._epoch = frame.wall_time - frame.time
        self.model, self.block_bytes = frame.model, frame.block_bytes
        self.block_size, self.num_blocks = frame.block_size, frame.num_blocks
        self.blocks = {block.block_id: block for block in frame.blocks}
        self.requests = {}
        self.tables = {table.number: list(table.block_ids) for table in frame.tables}
        self.counters = frame.counters
        self.tiers = frame.tiers
        for news in frame.requests:
            self._update(news)

    def _update(self, news: Request) -> None:
        known = self.requests.setdefault(news.number, Request(number=news.number))
        for name, value in news.told():
            setattr(known, name, value)
        if known.status == "finished":
            del self.requests[news.number]
            self.tables.pop(news.number, None)
