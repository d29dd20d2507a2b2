"""All lessons, in the order in which they are told."""

from collections.abc import Mapping
from functools import cache

from looseleaf.core.errors import LooseleafError
from looseleaf.studio.lessons.batching import BATCHING
from looseleaf.studio.lessons.block_size import BLOCK_SIZE
from looseleaf.studio.lessons.copies import COPIES
from looseleaf.studio.lessons.no_sharing import NO_SHARING
from looseleaf.studio.lessons.not_paging import NOT_PAGING
from looseleaf.studio.lessons.preemption import PREEMPTION
from looseleaf.studio.lessons.reservation import RESERVATION
from looseleaf.studio.lessons.scene import FORMAT, Control, Lesson, Payload, Scene, encode
from looseleaf.studio.lessons.sharing import SHARING
from looseleaf.studio.lessons.tables import TABLES
from looseleaf.studio.lessons.waste import WASTE

LESSONS: Mapping[str, Lesson] = {
    lesson.name: lesson
    for lesson in (
        *(RESERVATION, WASTE, TABLES, SHARING, COPIES),
        *(BATCHING, PREEMPTION, BLOCK_SIZE, NOT_PAGING, NO_SHARING),
    )
}


class UnknownLessonError(LooseleafError):
    """There is none of that name."""


@cache
def index() -> bytes:
    """The lessons and their controls, in JSON."""
    lessons = [{"name": x.name, "controls": x.controls} for x in LESSONS.values()]
    return encode({"format": FORMAT, "lessons": lessons})


def lesson_payload(name: str) -> Payload:
    """A lesson with a scene for each setting of its controls. Raises UnknownLessonError."""
    return _payload(_lesson(name).name)


def payload_json(name: str) -> bytes:
    """The same in JSON, worked out once."""
    return _payload_json(_lesson(name).name)


def scene(name: str, settings: Mapping[str, str]) -> Scene:
    """The scene with `settings`, given as text; what is not set is as it is at first. Raises
    UnknownLessonError, and LooseleafError for a control or a value that there is not."""
    lesson = _lesson(name)
    if not settings.keys() <= {control.name for control in lesson.controls}:
        names = ", ".join(control.name for control in lesson.controls)
        raise LooseleafError(f"this lesson has no such control: it has {names}")
    place = 0
    for control in lesson.controls:
        place = place * len(control.values) + _place(control, settings.get(control.name))
    return _payload(lesson.name).scenes[place]


@cache
def _payload(name: str) -> Payload:
    return LESSONS[name].payload()


@cache
def _payload_json(name: str) -> bytes:
    return encode(_payload(name))


def _lesson(name: str) -> Lesson:
    lesson = LESSONS.get(name)
    if lesson is None:
        raise UnknownLessonError(f"there is no such lesson: there are {', '.join(LESSONS)}")
    return lesson


def _place(control: Control, text: str | None) -> int:
    if text is None:
        return control.values.index(control.default)
    values = [str(value) for value in control.values]
    if text not in values:
        raise LooseleafError(f"{control.name} must be one of {', '.join(values)}")
    return values.index(text)
