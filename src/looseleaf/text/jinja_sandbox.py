"""The Jinja dialect of chat templates, in a sandbox.

Templates come with model files, so they run without access to Python's internals, cannot modify
what they are given, cannot loop over more than `jinja2.sandbox.MAX_RANGE` numbers at a time and
cannot print more than a limit. The dialect is the one that `transformers` established.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from looseleaf.text.errors import TemplateError

MAX_PROMPT_CHARS = 8 * 1024 * 1024


def compile_template(source: str) -> jinja2.Template:
    """Raises TemplateError when `source` is not valid Jinja."""
    try:
        return _ENVIRONMENT.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(
            f"the model's chat template is broken at line {error.lineno}: {error.message}; "
            "give another one, or use /v1/completions"
        ) from error


def render(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """The template's output.

    Raises TemplateError with the template's own message when it calls `raise_exception`, for any
    other failure of it, and when the output is longer than `MAX_PROMPT_CHARS`.
    """
    chunks: list[str] = []
    num_chars = 0
    try:
        for chunk in template.generate(variables):
            num_chars += len(chunk)
            if num_chars > MAX_PROMPT_CHARS:
                raise TemplateError(
                    f"the chat template printed more than {MAX_PROMPT_CHARS} characters; "
                    "send fewer or shorter messages, or mend the template"
                )
            chunks.append(chunk)
    except TemplateError:
        raise
    except Exception as error:  # a template is foreign code: it may fail in any way
        raise TemplateError(
            f"the chat template failed on these messages ({type(error).__name__}: {error})"
        ) from error
    return "".join(chunks)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it prints its body."""

    tags = {"generation"}  # noqa: RUF012 (declared so by Jinja)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter, escapes nothing for HTML and keeps the order of keys."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


_ENVIRONMENT = _environment()
