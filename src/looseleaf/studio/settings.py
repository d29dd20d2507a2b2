"""What a server shows of itself."""

from dataclasses import dataclass
from pathlib import Path

RECORD_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class StudioSettings:
    """Without `enabled` there is no /studio. With `show_text`, whoever may read the feed may read
    what requests say. `record` is a file that the feed is written to, with another beside it once
    it is full: `record_limit` bytes in all."""

    enabled: bool = True
    show_text: bool = False
    record: Path | None = None
    record_limit: int = RECORD_LIMIT


DEFAULT_STUDIO = StudioSettings()
