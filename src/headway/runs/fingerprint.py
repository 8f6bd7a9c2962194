"""A hash of weights that does not depend on how they are stored: the same bits, the same fingerprint."""

from __future__ import annotations

import hashlib
from typing import Any


def fingerprint(weights: object) -> str:
    """Sixteen hex digits over structure, types, shapes and bytes of nested containers of arrays."""
    digest = hashlib.blake2b(digest_size=8)
    _feed(weights, digest)
    return digest.hexdigest()


def _feed(value: Any, digest: Any) -> None:
    if isinstance(value, dict):
        digest.update(f"dict{len(value)}".encode())
        for key in sorted(value, key=repr):
            digest.update(repr(key).encode())
            _feed(value[key], digest)
    elif isinstance(value, list | tuple):
        digest.update(f"list{len(value)}".encode())
        for item in value:
            _feed(item, digest)
    elif isinstance(value, set | frozenset):
        digest.update(f"set{len(value)}{sorted(map(repr, value))}".encode())
    elif hasattr(value, "detach") and hasattr(value, "cpu"):  # a torch tensor; numpy lacks some of its types
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        flat = value.detach().cpu().contiguous().flatten()
        digest.update(_tensor_bytes(flat))
    elif hasattr(value, "dtype") and hasattr(value, "tobytes"):
        if value.dtype.hasobject:  # its bytes are addresses
            raise TypeError("cannot take the fingerprint of an array of objects")
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.tobytes())
    elif value is None or isinstance(value, bool | int | float | str | bytes):
        digest.update(f"{type(value).__name__}{value!r}".encode())
    elif hasattr(value, "__dict__"):
        digest.update(type(value).__qualname__.encode())
        _feed(vars(value), digest)
    else:
        raise TypeError(f"cannot take the fingerprint of a {type(value).__name__}")


def _tensor_bytes(flat: Any) -> bytes:
    import torch  # only reached with a tensor in hand

    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""
