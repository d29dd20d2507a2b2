"""What the two kinds of vocabulary have in common, as the tokenizer needs it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenizers.models import BPE
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from looseleaf.text.errors import TokenizerError


@dataclass(frozen=True)
class Scheme:
    """How plain text between special tokens becomes tokens, and how a token spells bytes.

    `piece_bytes` maps the spelling of a normal token to the bytes it stands for. `adds_bos` is the
    rule of models whose file does not say. With `adds_leading_space` the text gets a space in
    front that decoding takes away again.
    """

    model: BPE
    piece_bytes: Callable[[str], bytes]
    normalizer: Normalizer | None = None
    pre_tokenizer: PreTokenizer | None = None
    adds_bos: bool = False
    adds_leading_space: bool = False


def build_bpe(
    vocab: dict[str, int],
    merges: Sequence[tuple[str, str]],
    *,
    unknown_token: str | None = None,
    byte_fallback: bool = False,
    ignore_merges: bool = False,
) -> BPE:
    """Raises TokenizerError when a merge names a token that is not in `vocab`."""
    try:
        return BPE(
            vocab,
            merges,
            unk_token=unknown_token,
            fuse_unk=unknown_token is not None,
            byte_fallback=byte_fallback,
            ignore_merges=ignore_merges,
        )
    except Exception as error:  # the Rust side raises bare Exception
        raise TokenizerError(
            f"the tokenizer's merges do not fit its {len(vocab)} tokens ({error}); "
            "the file is damaged: fetch or convert it again"
        ) from error
