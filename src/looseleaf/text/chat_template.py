"""Messages to a prompt, by the Jinja template that a model file carries."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from looseleaf.text.errors import TemplateError
from looseleaf.text.messages import normalized
from looseleaf.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import jinja2

# Stands at the end of the message to be continued while the template runs, so that trimming or
# repeating of the content by the template cannot hide where it ends. U+FDD0 is a noncharacter.
_END_OF_CONTENT = "\ufdd0end of content\ufdd0"

_GGUF_KEY = "tokenizer.chat_template"


class ChatTemplate:
    """One template, several by name, or none at all.

    Templates are compiled at first use, and Jinja is imported then: a model with a broken template,
    or without one, still loads and serves raw completions.
    """

    def __init__(
        self,
        source: str | Mapping[str, str] | Iterable[Mapping[str, str]] | None,
        bos_token: str = "",
        eos_token: str = "",
    ) -> None:
        """`source` may also be a list of `{"name": ..., "template": ...}`."""
        self._sources = _sources_by_name(source)
        self._compiled: dict[str, jinja2.Template] = {}
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], tokenizer: Tokenizer) -> Self:
        """The templates a GGUF file carries: `tokenizer.chat_template`, and `...<name>` ones."""
        named = {
            key.removeprefix(_GGUF_KEY).removeprefix(".") or "default": value
            for key, value in metadata.items()
            if key == _GGUF_KEY or key.startswith(f"{_GGUF_KEY}.")
        }
        return cls(
            named,
            bos_token=_spelling(tokenizer, tokenizer.bos_token_id),
            eos_token=_spelling(tokenizer, tokenizer.eos_token_id),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the templates there are; a single one is called `default`."""
        return tuple(self._sources)

    def source(self, *, has_tools: bool) -> str:
        """The text of the template that `render` would use; "" where there is none to use."""
        name = "tool_use" if has_tools and "tool_use" in self._sources else "default"
        return self._sources.get(name, "")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> str:
        """The prompt for `messages`, which are not modified.

        The prompt holds the template's own BOS text where it writes one; encode it with
        `parse_special=True`, which then adds no second.

        With `continue_final_message` the prompt ends right after the content of the last message,
        whoever said it, and `add_generation_prompt` is ignored. An empty list of `tools` is no
        tools. `extra` are further variables for the template; they cannot replace its standard
        ones. `name` picks a template; else it is `tool_use` when there are tools, if there is such
        a one, and `default`.

        Raises TemplateError for messages that are malformed or that the template refuses (with
        the template's own message), and when there is no template to use.
        """
        from looseleaf.text.jinja_sandbox import render

        if not messages:
            raise TemplateError("there are no messages; send at least one")
        template = self._template(name or self._choose(bool(tools)))
        chat = normalized(messages)
        if continue_final_message:
            chat[-1]["content"] += _END_OF_CONTENT
        prompt = render(
            template,
            {
                **(extra or {}),
                **self._tokens,
                "messages": chat,
                "tools": list(tools) if tools else None,
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
            },
        )
        return _up_to_final_content(prompt) if continue_final_message else prompt

    def _choose(self, has_tools: bool) -> str:
        if has_tools and "tool_use" in self._sources:
            return "tool_use"
        if "default" in self._sources or not self._sources:
            return "default"
        raise TemplateError(
            f"this model has chat templates named {', '.join(self.names)} and no default; "
            "choose one by its name"
        )

    def _template(self, name: str) -> "jinja2.Template":
        if not self._sources:
            raise TemplateError(
                "this model has no chat template; use /v1/completions with a prompt you format "
                "yourself, or start the server with a chat template"
            )
        if name not in self._sources:
            raise TemplateError(
                f"this model has no chat template named {name!r}; there are {', '.join(self.names)}"
            )
        if name not in self._compiled:
            from looseleaf.text.jinja_sandbox import compile_template

            self._compiled[name] = compile_template(self._sources[name])
        return self._compiled[name]


def _sources_by_name(
    source: str | Mapping[str, str] | Iterable[Mapping[str, str]] | None,
) -> dict[str, str]:
    if source is None:
        return {}
    if isinstance(source, str):
        return {"default": source}
    if isinstance(source, Mapping):
        return dict(source)
    return {entry["name"]: entry["template"] for entry in source}


def _spelling(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "" if token_id is None else tokenizer.token_str(token_id)


def _up_to_final_content(prompt: str) -> str:
    content, marker, _ = prompt.rpartition(_END_OF_CONTENT)
    if not marker:
        raise TemplateError(
            "continue_final_message needs a template that prints the last message, and this one "
            "does not for its role; end with an assistant message, or turn the option off"
        )
    return content.replace(_END_OF_CONTENT, "")
