"""What can go wrong between a model's name and its weights."""

from looseleaf.core.errors import LooseleafError


class GGUFError(LooseleafError):
    """A file that is not GGUF, is damaged, or holds something this reader cannot decode."""


class SourceError(LooseleafError):
    """A model's name that leads to no usable file."""
