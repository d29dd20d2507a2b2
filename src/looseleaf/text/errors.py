"""The errors of this folder; their messages name the value, the limit and what to do."""

from looseleaf.core.errors import LooseleafError


class TokenizerError(LooseleafError, ValueError):
    """A vocabulary that cannot be used, or a text that cannot be tokenized."""


class TemplateError(LooseleafError, ValueError):
    """Messages that the chat template refuses, or a template that cannot be used."""
