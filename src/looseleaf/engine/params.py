"""What a request asks for, checked against a vocabulary and put into its ids."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from looseleaf.core.errors import LooseleafError
from looseleaf.sampling.params import SamplingParams
from looseleaf.text.grammar import Grammars
from looseleaf.text.tokenizer import Tokenizer


def resolve(params: SamplingParams, tokenizer: Tokenizer, grammars: Grammars) -> SamplingParams:
    """With the token ids of the bad words, and the grammar of what the output must be. Doing it
    again changes nothing.

    Raises LooseleafError for an id that the vocabulary does not have, and for what is no grammar;
    the message begins with the name of the parameter.
    """
    for name, ids in (
        ("logit_bias", (token_id for token_id, _ in params.biases)),
        ("allowed_token_ids", params.allowed_token_ids or ()),
        ("bad_words_token_ids", (i for word in params.bad_words_token_ids for i in word)),
    ):
        _check(name, ids, tokenizer.vocab_size)
    if params.structured_outputs is not None and params.grammar is None:
        params = replace(params, grammar=grammars.compile(params.structured_outputs))
    if not params.bad_words:
        return params
    words = dict.fromkeys(params.bad_words_token_ids)
    for word in params.bad_words:
        words |= dict.fromkeys(_spellings(word, tokenizer))
    return replace(params, bad_words_token_ids=tuple(words))


def _check(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise LooseleafError(
                f"{name} has token {token_id}, which is not in the vocabulary: ids go from 0 to "
                f"{vocab_size - 1}"
            )


def _spellings(word: str, tokenizer: Tokenizer) -> Iterator[tuple[int, ...]]:
    """As a word at the beginning of a text, and as one after another."""
    bare = word.removeprefix(" ")
    for text in (bare, f" {bare}"):
        token_ids = tuple(tokenizer.encode(text, add_special=False, parse_special=False))
        if token_ids:
            yield token_ids
