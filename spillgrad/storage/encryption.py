"""Encrypt arrays with a key that exists only in this process's RAM, so that no other process can read them."""

import itertools
from typing import Any

import numpy as np

from spillgrad.errors import ArgumentError
from spillgrad.storage.codecs import Codec, Encoded, Encoding, Undecodable
from spillgrad.storage.store import Handle, Remote
from spillgrad_kernels.memory import buffers

_PIECE_BYTES = 1 << 20
_NONCE_BYTES, _TAG_BYTES = 12, 16


class Encrypted:
    """Encrypts, by AES-256 in Galois/Counter mode, the output of the codec `inner`, or the array itself if it is None.

    An array is cut into pieces of 1 MiB; each is stored with its nonce before it and its tag behind it. The key never
    leaves this object. Nonces count up, so none repeats. The tag of a piece also authenticates the number, label, dtype
    and shape of the array, and the position of the piece. So bytes of another array or another piece are refused like
    damaged bytes.

    Source: NIST SP 800-38D.
    """

    def __init__(self, inner: Codec | None) -> None:
        aes_gcm = _aes_gcm()
        self._inner = inner
        self._cipher = aes_gcm(aes_gcm.generate_key(256))
        self._nonces = itertools.count()

    def bound(self, array: np.ndarray | Handle | Remote) -> int:
        inner = self._inner.bound(array) if self._inner else 0
        return max(inner + sealed_bytes(inner), sealed_bytes(array.nbytes))

    def encode(self, array: np.ndarray, handle: Handle) -> Encoded | None:
        encoded = self._inner.encode(array, handle) if self._inner and self._inner.bound(array) else None
        plain = (array if encoded is None else encoded.payload).reshape(-1).view(np.uint8)
        inner = None if encoded is None else encoded.encoding
        payload = buffers.empty((sealed_bytes(plain.nbytes),), np.uint8)
        for i, start, sealed in _pieces(plain.nbytes):
            piece = plain[start : start + _PIECE_BYTES]
            place = payload[sealed : sealed + sealed_bytes(piece.nbytes)]
            nonce = next(self._nonces).to_bytes(_NONCE_BYTES, "little")
            place[:_NONCE_BYTES] = np.frombuffer(nonce, np.uint8)
            self._cipher.encrypt_into(nonce, piece, _context(handle, inner, i), place[_NONCE_BYTES:])
        codec = "aes256gcm" if inner is None else f"{inner.codec}+aes256gcm"
        encoding = Encoding(codec, array.shape, array.dtype, payload.nbytes, inner=inner, secret=True)
        return Encoded(payload, encoding)

    def decode(self, stored: np.ndarray, encoding: Encoding, handle: Handle, into: np.ndarray) -> None:
        from cryptography.exceptions import InvalidTag

        inner = encoding.inner
        plain = into.reshape(-1).view(np.uint8) if inner is None else buffers.empty((inner.nbytes,), np.uint8)
        for i, start, sealed in _pieces(plain.nbytes):
            piece = plain[start : start + _PIECE_BYTES]
            place = stored[sealed : sealed + sealed_bytes(piece.nbytes)]
            nonce = place[:_NONCE_BYTES].tobytes()
            try:
                self._cipher.decrypt_into(nonce, place[_NONCE_BYTES:], _context(handle, inner, i), piece)
            except InvalidTag as error:
                raise Undecodable(f"piece {i} does not authenticate") from error
        if inner is not None and self._inner is not None:
            self._inner.decode(plain, inner, handle, into)


def _pieces(nbytes: int) -> list[tuple[int, int, int]]:
    """Return (number, offset in the plain bytes, offset in the encrypted bytes) of each piece."""
    sealed = _PIECE_BYTES + _NONCE_BYTES + _TAG_BYTES
    return [(i, i * _PIECE_BYTES, i * sealed) for i in range(max(1, -(-nbytes // _PIECE_BYTES)))]


def sealed_bytes(nbytes: int) -> int:
    """Return how many bytes the encrypted form of `nbytes` bytes takes."""
    return nbytes + len(_pieces(nbytes)) * (_NONCE_BYTES + _TAG_BYTES)


def _context(handle: Handle, inner: Encoding | None, piece: int) -> bytes:
    what = (handle.sequence, handle.label, handle.dtype.str, handle.shape, inner and (inner.codec, inner.nbytes), piece)
    return repr(what).encode()


def _aes_gcm() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ArgumentError(
            "spill: got encrypt=True without the package cryptography; pip install 'spillgrad[crypto]'"
        ) from error
    return AESGCM
