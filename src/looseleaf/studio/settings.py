"""What a server shows of itself."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class StudioSettings:
    """Without `enabled` there is no /studio. With `show_text`, whoever may read the feed may read
    what requests say. `record` is a file that the feed is written to."""

    enabled: bool = True
    show_text: bool = False
    record: Path | None = None


DEFAULT_STUDIO = StudioSettings()
