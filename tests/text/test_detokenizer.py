from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from looseleaf.core.errors import LooseleafError
from looseleaf.text.detokenizer import IncrementalDetokenizer, completes_stop
from looseleaf.text.tokenizer import Tokenizer

END = 266

token_ids = st.lists(st.integers(min_value=-1, max_value=270), max_size=40)
letters = st.text(alphabet="ab\xe9", min_size=1, max_size=5)


def spelled(tokenizer: Tokenizer, *pieces: str) -> list[int]:
    """Ids of tokens of the tiny vocabulary by their spelling."""
    ids = {tokenizer.token_str(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    return [ids[piece] for piece in pieces]


def streamed(tokenizer: Tokenizer, chunks: Iterable[Sequence[int]], **options: Any) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    return [*map(detokenizer.append, chunks), detokenizer.finish()]


def text_of(tokenizer: Tokenizer, ids: Sequence[int], **options: Any) -> str:
    return "".join(streamed(tokenizer, [[token_id] for token_id in ids], **options))


def in_chunks(draw: st.DrawFn, ids: list[int]) -> list[list[int]]:
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


@st.composite
def chunked_ids(draw: st.DrawFn) -> list[list[int]]:
    return in_chunks(draw, draw(token_ids))


@st.composite
def chunked_letters(draw: st.DrawFn) -> list[list[int]]:
    return in_chunks(draw, list(draw(st.text(alphabet="ab\xe9", max_size=20)).encode()))


@given(chunks=chunked_ids(), skip_special=st.booleans())
@example(chunks=[[0xE2], [END, 0x82], [0xAC], [0xF0, 0x9F]], skip_special=True)
def test_deltas_joined_equal_the_whole(
    tokenizer: Tokenizer, chunks: list[list[int]], skip_special: bool
) -> None:
    ids = list(chain.from_iterable(chunks))
    text = "".join(streamed(tokenizer, chunks, skip_special=skip_special))
    assert text == tokenizer.decode(ids, skip_special=skip_special)


def first_stop(text: str, stop: Sequence[str], ends: Sequence[int]) -> tuple[int, int, str] | None:
    """The slow way: (end, start, string) of the first stop string to end at one of `ends`."""
    found = [
        (end, end - len(string), string)
        for end in ends
        for string in stop
        if text[:end].endswith(string)
    ]
    return min(found, default=None)


@given(
    chunks=chunked_letters(),
    stop=st.lists(letters, max_size=3),
    include_stop=st.booleans(),
    min_tokens=st.integers(0, 12),
)
@example(chunks=[[97, 97], [98]], stop=["b", "aab"], include_stop=False, min_tokens=0)
@example(chunks=[[97, 98, 98]], stop=["b", "abb"], include_stop=False, min_tokens=3)
def test_stop_equals_a_search_in_the_whole_text(
    tokenizer: Tokenizer,
    chunks: list[list[int]],
    stop: list[str],
    include_stop: bool,
    min_tokens: int,
) -> None:
    ids = list(chain.from_iterable(chunks))
    text = bytes(ids).decode()
    num_tokens_at = [len(text[:end].encode()) for end in range(len(text) + 1)]
    ends = [end for end in range(1, len(text) + 1) if num_tokens_at[end] >= min_tokens]
    match = first_stop(text, stop, ends)

    detokenizer = IncrementalDetokenizer(
        tokenizer, stop=stop, include_stop=include_stop, min_tokens=min_tokens
    )
    shown = "".join([detokenizer.append(chunk) for chunk in chunks]) + detokenizer.finish()
    if match is None:
        assert (shown, detokenizer.stopped) == (text, None)
        assert detokenizer.num_tokens == len(ids)
    else:
        end, start, string = match
        assert shown == text[: end if include_stop else start]
        assert detokenizer.stopped == string
        assert detokenizer.num_tokens == num_tokens_at[end]


@pytest.mark.parametrize("text", ["😀", "příliš žluťoučký", "한국어 문장입니다"])
def test_c082_no_half_characters(tokenizer: Tokenizer, text: str) -> None:
    deltas = streamed(tokenizer, [[byte] for byte in text.encode()])
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)


def test_c082_holds_for_byte_fallback(sentencepiece_tokenizer: Tokenizer) -> None:
    ids = sentencepiece_tokenizer.encode("😀 é", add_special=True, parse_special=False)
    assert text_of(sentencepiece_tokenizer, ids) == "😀 é"


def test_c084_invalid_bytes_show_only_when_they_were_there(tokenizer: Tokenizer) -> None:
    korean = "페이지드 어텐션은 메모리를 블록으로 나눈다. " * 20
    assert text_of(tokenizer, tokenizer.encode(korean, add_special=True, parse_special=False)) == (
        korean
    )
    assert text_of(tokenizer, [0xEC, 0x95]) == "\ufffd"
    assert text_of(tokenizer, [0xEC, *b"ok"]) == "\ufffdok"


def test_c065_stop_prefix_never_leaks(tokenizer: Tokenizer) -> None:
    ids = list(b"xDEFGHIJK")
    chunks = [[token_id] for token_id in ids]
    assert streamed(tokenizer, chunks, stop=["DEFGHIJ"]) == ["x", *[""] * 9]
    assert text_of(tokenizer, ids, stop=["DEFGHIJ"], include_stop=True) == "xDEFGHIJ"


def test_c065_text_that_only_began_like_a_stop_is_shown(tokenizer: Tokenizer) -> None:
    chunks = [[token_id] for token_id in b"aab"]
    assert streamed(tokenizer, chunks, stop=["aac"]) == ["", "", "aab", ""]
    assert streamed(tokenizer, chunks[:2], stop=["aac"]) == ["", "", "aa"]


def test_stop_inside_a_token_drops_the_rest_of_it(tokenizer: Tokenizer) -> None:
    ids = spelled(tokenizer, "Ġhello", "hello")
    detokenizer = IncrementalDetokenizer(tokenizer, stop=["ell"])
    assert detokenizer.append(ids) == " h"
    assert (detokenizer.stopped, detokenizer.num_tokens) == ("ell", 1)
    assert detokenizer.append(ids) == detokenizer.finish() == ""
    assert detokenizer.num_tokens == 1


@pytest.mark.parametrize(
    ("stop", "text", "stopped"),
    [
        (["hello", "ell"], "h", "ell"),  # ends first
        (["lo", "hello"], "", "hello"),  # end together: the longest
    ],
)
@pytest.mark.parametrize("pieces", [["hello"], ["hell", "o"], ["he", "l", "l", "o"]])
def test_overlapping_stops(
    tokenizer: Tokenizer, pieces: list[str], stop: list[str], text: str, stopped: str
) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer, stop=stop)
    assert detokenizer.append(spelled(tokenizer, *pieces)) + detokenizer.finish() == text
    assert detokenizer.stopped == stopped


def test_c062_min_tokens_wins_over_stop_strings(tokenizer: Tokenizer) -> None:
    ids = list(b"a\nb\nc")
    assert text_of(tokenizer, ids, stop=["\n"], min_tokens=3) == "a\nb"
    assert text_of(tokenizer, ids, stop=["\n"], min_tokens=5) == "a\nb\nc"
    assert text_of(tokenizer, ids, stop=["\n"], min_tokens=2) == "a"


def test_special_tokens_are_hidden_unless_asked_for(tokenizer: Tokenizer) -> None:
    ids = [*b"hi", END]
    assert text_of(tokenizer, ids) == "hi"
    assert text_of(tokenizer, ids, skip_special=False) == "hi<|im_end|>"
    assert text_of(tokenizer, ids, skip_special=False, stop=["<|im_end|>"]) == "hi"


def test_c078_unknown_ids_have_no_text(tokenizer: Tokenizer) -> None:
    assert text_of(tokenizer, [*b"h", 10**6, -1, *b"i"]) == "hi"


def test_c086_leading_space_is_taken_once(sentencepiece_tokenizer: Tokenizer) -> None:
    ids = spelled(sentencepiece_tokenizer, "▁", "▁leading", "▁x")
    assert sentencepiece_tokenizer.decode(ids) == " leading x"
    for chunks in ([ids], [[token_id] for token_id in ids], [[1], ids[:1], ids[1:]]):
        assert "".join(streamed(sentencepiece_tokenizer, chunks)) == " leading x"


def test_c086_text_that_continues_a_prompt_keeps_its_space(
    sentencepiece_tokenizer: Tokenizer,
) -> None:
    ids = spelled(sentencepiece_tokenizer, "▁leading", "▁x")
    assert text_of(sentencepiece_tokenizer, ids, continues_text=True) == " leading x"


def test_empty_stop_strings_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(LooseleafError, match="empty"):
        IncrementalDetokenizer(tokenizer, stop=["a", ""])


@given(ids=token_ids, stop=st.lists(letters, min_size=1, max_size=3))
def test_the_token_that_completes_a_stop_string_is_known_from_the_last_ones(
    tokenizer: Tokenizer, ids: list[int], stop: list[str]
) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer, stop=stop, continues_text=True)
    for count in range(1, len(ids) + 1):
        detokenizer.append(ids[count - 1 : count])
        found = detokenizer.stopped is not None
        assert completes_stop(tokenizer, ids[:count], stop) == found
        if found:
            return
