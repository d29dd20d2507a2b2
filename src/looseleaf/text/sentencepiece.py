"""SentencePiece BPE, GGUF kind `llama`: scores say which pair of pieces to join first.

The file has scores, not merges. Joining by score is BPE with the merges ordered by the score of
what they make: each piece, best score first, contributes every cut of it into two pieces. One
thing is lost: SentencePiece joins equal results leftmost first, whatever their cut, and BPE goes
cut by cut; that can matter only where two cuts of one piece overlap, as in runs of one letter.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import normalizers

from looseleaf.text.errors import TokenizerError
from looseleaf.text.scheme import Scheme, build_bpe
from looseleaf.text.vocabulary import TokenType, Vocabulary, setting, setting_list

_SPACE = "\u2581"


def sentencepiece(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Scheme:
    """Raises TokenizerError when there is not one score for each token."""
    scores = setting_list(metadata, "scores")
    if len(scores) != len(vocabulary):
        raise TokenizerError(
            f"tokenizer.ggml.scores has {len(scores)} entries for {len(vocabulary)} tokens; "
            "the file is damaged: fetch or convert it again"
        )
    # Only normal pieces may be built by joining: plain text must never add up to a control token.
    score_of = {
        token: score
        for token, score, kind in zip(vocabulary.tokens, scores, vocabulary.types, strict=True)
        if kind == TokenType.NORMAL
    }
    unknown_id = vocabulary.token_id(metadata, "unknown_token_id")
    adds_leading_space = bool(setting(metadata, "add_space_prefix", True))
    return Scheme(
        model=build_bpe(
            vocabulary.ids_by_token(),
            list(_merges(score_of)),
            unknown_token=None if unknown_id is None else vocabulary.tokens[unknown_id],
            byte_fallback=True,
        ),
        piece_bytes=_piece_bytes,
        normalizer=_normalizer(adds_leading_space),
        adds_bos=True,
        adds_leading_space=adds_leading_space,
    )


def _merges(score_of: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """The pairs that make some piece, those with the best score first."""
    for piece in sorted(score_of, key=score_of.__getitem__, reverse=True):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in score_of and right in score_of:
                yield left, right


def _normalizer(adds_leading_space: bool) -> normalizers.Normalizer:
    spaces = normalizers.Replace(" ", _SPACE)
    if not adds_leading_space:
        return spaces
    return normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])


def _piece_bytes(piece: str) -> bytes:
    return piece.replace(_SPACE, " ").encode()
