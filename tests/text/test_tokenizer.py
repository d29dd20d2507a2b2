import json
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import assume, given
from hypothesis import strategies as st

from looseleaf.core.errors import LooseleafError
from looseleaf.text.errors import TokenizerError
from looseleaf.text.tokenizer import Tokenizer
from looseleaf.weights.gguf import GGUFFile

BOS, END, TAB, UNUSED = 265, 266, 264, 267


def plain(tokenizer: Tokenizer, text: str) -> list[str]:
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    return [tokenizer.token_str(token_id) for token_id in ids]


def with_settings(metadata: dict[str, Any], **settings: Any) -> Tokenizer:
    changes = {f"tokenizer.ggml.{key}": value for key, value in settings.items()}
    return Tokenizer.from_gguf(metadata | changes)


@given(text=st.text(), parse_special=st.booleans())
def test_byte_level_round_trip(tokenizer: Tokenizer, text: str, parse_special: bool) -> None:
    ids = tokenizer.encode(text, add_special=True, parse_special=parse_special)
    assert tokenizer.decode(ids) == text


def test_merges_apply_in_their_order(tokenizer: Tokenizer) -> None:
    assert plain(tokenizer, "hello hello w") == ["hello", "Ġhello", "Ġw"]


def test_control_tokens_match_only_when_parsed(tokenizer: Tokenizer) -> None:
    text = "he<|im_end|>"
    assert END in tokenizer.encode(text, add_special=False, parse_special=True)
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    assert END not in ids
    assert tokenizer.decode(ids) == text


def test_user_defined_tokens_match_always(tokenizer: Tokenizer) -> None:
    for parse_special in (True, False):
        ids = tokenizer.encode("he<tab> he", add_special=False, parse_special=parse_special)
        assert ids.count(TAB) == 1
        assert tokenizer.decode(ids) == "he<tab> he"


def test_c129_one_bos(tokenizer: Tokenizer) -> None:
    rendered = "<|bos|>hello"
    once = tokenizer.encode(rendered, add_special=True, parse_special=True)
    assert once == tokenizer.encode("hello", add_special=True, parse_special=False)
    assert once.count(BOS) == 1
    as_plain_text = tokenizer.encode(rendered, add_special=True, parse_special=False)
    assert as_plain_text.count(BOS) == 1
    assert tokenizer.decode(as_plain_text) == rendered
    assert BOS not in tokenizer.encode("hello", add_special=False, parse_special=True)


def test_c129_a_chat_begins_as_its_model_wants_and_never_ends(
    byte_level_metadata: dict[str, Any],
) -> None:
    for add_bos in (True, False):
        tokenizer = with_settings(
            byte_level_metadata, add_bos_token=add_bos, add_eos_token=True, eos_token_id=END
        )
        hello = tokenizer.encode("hello", add_special=False, parse_special=False)
        assert tokenizer.encode_chat("hello") == [BOS] * add_bos + hello
        assert tokenizer.encode_chat("<|bos|>hello") == [BOS, *hello]
        assert tokenizer.encode_chat("hello<|im_end|>") == [BOS] * add_bos + [*hello, END]
        assert tokenizer.encode_chat("") == [BOS] * add_bos


@given(text=st.text(alphabet="hello w<|im_end|>é😀\n123"), add_special=st.booleans())
def test_offsets_are_where_the_tokens_start(
    tokenizer: Tokenizer, text: str, add_special: bool
) -> None:
    ids, offsets = tokenizer.encode_with_offsets(text, add_special=add_special, parse_special=True)
    assert ids == tokenizer.encode(text, add_special=add_special, parse_special=True)
    if add_special:
        assert (ids.pop(0), offsets.pop(0)) == (BOS, 0)
    for position, offset in enumerate(offsets):
        before = tokenizer.decode(ids[:position], skip_special=False)
        assert text[:offset] == before.rstrip("\ufffd")


def test_offsets_of_tokens_that_were_added(
    byte_level_metadata: dict[str, Any], sentencepiece_tokenizer: Tokenizer
) -> None:
    tokenizer = with_settings(byte_level_metadata, add_eos_token=True)
    assert tokenizer.encode_with_offsets("he w", add_special=True, parse_special=False) == (
        [BOS, *tokenizer.encode("he w", add_special=False, parse_special=False), END],
        [0, 0, 2, 4],
    )
    ids, offsets = sentencepiece_tokenizer.encode_with_offsets(
        "<s>leading x", add_special=True, parse_special=True
    )
    names = [sentencepiece_tokenizer.token_str(token_id) for token_id in ids]
    assert list(zip(names, offsets, strict=True)) == [("<s>", 0), ("▁leading", 3), ("▁x", 10)]


def test_the_longest_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.longest_token_bytes == len("<|im_end|>")


def test_eos_is_added_once_where_the_model_asks(byte_level_metadata: dict[str, Any]) -> None:
    tokenizer = with_settings(byte_level_metadata, add_eos_token=True, add_bos_token=False)
    for text in ("he", "he<|im_end|>"):
        ids = tokenizer.encode(text, add_special=True, parse_special=True)
        assert ids[-1:] == [END]
        assert ids.count(END) == 1
        assert BOS not in ids


def test_c078_unknown_ids_have_no_text(tokenizer: Tokenizer) -> None:
    for token_id in (tokenizer.vocab_size, 10**6, -1, UNUSED):
        assert tokenizer.token_bytes(token_id) == b""
        assert not tokenizer.is_special(token_id)
    assert tokenizer.token_str(tokenizer.vocab_size) == ""
    hello = tokenizer.encode("hello", add_special=False, parse_special=False)
    assert tokenizer.decode([-1, *hello, 10**6]) == "hello"


def test_special_tokens_are_left_out_of_text_on_request(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|bos|>he<|im_end|>", add_special=False, parse_special=True)
    assert tokenizer.decode(ids) == "he"
    assert tokenizer.decode(ids, skip_special=False) == "<|bos|>he<|im_end|>"
    assert tokenizer.token_bytes(END) == b"<|im_end|>"


def test_end_of_turn_tokens_are_known_by_name(byte_level_metadata: dict[str, Any]) -> None:
    assert with_settings(byte_level_metadata, eos_token_id=BOS).eos_token_ids == {BOS, END}
    assert with_settings(byte_level_metadata, eot_token_id=0).eos_token_ids == {0, END}


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["123", "Ġ", "1", "."]),
        ("smollm", ["1", "2", "3", "Ġ", "1", "."]),
        ("llama-bpe", ["123", "Ġ", "1", "."]),
        ("qwen2", ["1", "2", "3", "Ġ", "1", "."]),
        ("gpt-4o", ["123", "Ġ", "1", "."]),
        ("tekken", ["1", "2", "3", "Ġ", "1", "."]),
    ],
)
def test_digits_by_pre_tokenizer(
    byte_level_metadata: dict[str, Any], pre: str, expected: list[str]
) -> None:
    tokenizer = with_settings(byte_level_metadata, pre=pre)
    assert plain(tokenizer, "123 1.") == expected
    assert tokenizer.decode(range(256)) == bytes(range(256)).decode(errors="replace")


def test_numpy_arrays_are_as_good_as_lists(byte_level_metadata: dict[str, Any]) -> None:
    arrays = {
        key: np.array(value) if isinstance(value, list) else value
        for key, value in byte_level_metadata.items()
    }
    assert plain(Tokenizer.from_gguf(arrays), "hello 123") == ["hello", "Ġ", "123"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pre": "brand-new"}, r"'brand-new'.*smollm"),
        ({"model": "bert"}, r"'bert'.*gpt2, llama"),
        ({"merges": []}, r"merges.*convert"),
        ({"merges": ["x yz"]}, r"merges.*damaged"),
        ({"tokens": []}, r"tokens"),
        ({"token_type": [1]}, r"1 entries for 268 tokens"),
        ({"eos_token_id": 999}, r"eos_token_id is 999.*0 to 267"),
    ],
)
def test_unusable_metadata_says_what_is_wrong(
    byte_level_metadata: dict[str, Any], settings: dict[str, Any], expected: str
) -> None:
    with pytest.raises(LooseleafError, match=expected):
        with_settings(byte_level_metadata, **settings)


def test_lone_surrogates_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match=r"U\+D800.*position 2"):
        tokenizer.encode("ab\ud800", add_special=False, parse_special=False)


def test_sentencepiece_joins_by_score(sentencepiece_tokenizer: Tokenizer) -> None:
    assert plain(sentencepiece_tokenizer, "leading x") == ["▁leading", "▁x"]
    assert plain(sentencepiece_tokenizer, "aaaa") == ["▁", "aa", "aa"]


def test_sentencepiece_falls_back_to_bytes(sentencepiece_tokenizer: Tokenizer) -> None:
    assert plain(sentencepiece_tokenizer, "é") == ["▁", "<0xC3>", "<0xA9>"]
    ids = sentencepiece_tokenizer.encode("é", add_special=True, parse_special=False)
    assert sentencepiece_tokenizer.decode(ids) == "é"
    assert sentencepiece_tokenizer.decode(ids[:-1]) == "\ufffd"


def test_sentencepiece_never_joins_text_to_a_control_token(
    sentencepiece_tokenizer: Tokenizer,
) -> None:
    assert plain(sentencepiece_tokenizer, "<s>") == ["▁", "<s", ">"]
    assert sentencepiece_tokenizer.encode("<s>", add_special=True, parse_special=True) == [1]


@given(text=st.text(alphabet="leading x\n<s>é😀"))
def test_c086_one_leading_space_is_added_and_taken(
    sentencepiece_tokenizer: Tokenizer, text: str
) -> None:
    ids = sentencepiece_tokenizer.encode(text, add_special=True, parse_special=False)
    # After a token that matches as a whole, the text beyond it gets a space of its own.
    pieces = text.split("\n\n")
    expected = "\n\n".join([pieces[0], *(f" {piece}" if piece else "" for piece in pieces[1:])])
    assert sentencepiece_tokenizer.decode(ids) == expected


@pytest.fixture(scope="module")
def smollm2_metadata(smollm2_path: Path) -> dict[str, Any]:
    gguf = pytest.importorskip("looseleaf.weights.gguf")
    metadata: dict[str, Any] = gguf.GGUFFile(smollm2_path).metadata
    return metadata


@pytest.fixture(scope="module")
def smollm2(smollm2_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_metadata)


@pytest.mark.model
@pytest.mark.parametrize("parse_special", [True, False])
def test_smollm2_equals_the_oracle(
    smollm2: Tokenizer, shared_dir: Path, parse_special: bool
) -> None:
    oracle = json.loads((shared_dir / "oracle" / "smollm2-tokenize.json").read_text())
    expected = oracle[f"parse_special_{str(parse_special).lower()}"]
    assert expected == {
        text: smollm2.encode(text, add_special=False, parse_special=parse_special)
        for text in expected
    }
    assert all(smollm2.decode(ids, skip_special=False) == text for text, ids in expected.items())


@pytest.mark.model
def test_smollm2_declares_its_ends(smollm2: Tokenizer) -> None:
    names = {smollm2.token_str(token_id) for token_id in smollm2.eos_token_ids}
    assert names == {"<|im_end|>", "<|endoftext|>"}
    assert not smollm2.add_bos


@pytest.mark.model
def test_smollm2_loads_quickly(smollm2_metadata: dict[str, Any]) -> None:
    start = perf_counter()
    Tokenizer.from_gguf(smollm2_metadata)
    assert perf_counter() - start < 2.0  # usually 0.2 s; room for a busy machine


@pytest.fixture(scope="module")
def smollm2_bytes(smollm2: Tokenizer) -> frozenset[int]:
    """The bytes the vocabulary can spell; it lacks some that its training text did not have."""
    return frozenset(b"".join(map(smollm2.token_bytes, range(smollm2.vocab_size))))


@pytest.mark.model
@given(text=st.text())
def test_smollm2_round_trip(smollm2: Tokenizer, smollm2_bytes: frozenset[int], text: str) -> None:
    assume(smollm2_bytes.issuperset(text.encode()))
    ids = smollm2.encode(text, add_special=False, parse_special=False)
    assert smollm2.decode(ids) == text


def test_saved_for_others_it_cuts_alike(tmp_path: Path, tiny_model: Path) -> None:
    with GGUFFile(tiny_model) as file:
        tokenizer = Tokenizer.from_gguf(file.metadata)
    tokenizer.save(tmp_path / "tokenizer.json")
    other = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in ("hello there", "<|start|>user\nhé 😀<|end|>"):
        ours = tokenizer.encode(text, add_special=False, parse_special=True)
        assert other.encode(text, add_special_tokens=False).ids == ours
