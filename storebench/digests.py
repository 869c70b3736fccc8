"""Digests of samples, orders and losses: the definition of "the same", in one place."""

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from storebench.arrays import Pixels

DIGEST_BYTES = 16

# Sample digests, uint8 [N, 16], row i for sample i.
DigestTable = npt.NDArray[np.uint8]


def sample_digest(pixels: Pixels, label: int) -> bytes:
    """Return the 16-byte digest of one decoded sample: uint8 [H, W, C] and its label."""
    digest = hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=DIGEST_BYTES)
    digest.update(int(label).to_bytes(8, "little", signed=True))
    return digest.digest()


def payload_digest(payload: bytes, label: int) -> bytes:
    """Return the 16-byte digest of an image file that is stored as it is: its bytes and its label."""
    return sample_digest(np.frombuffer(payload, np.uint8), label)


def set_digest(sample_digests: Iterable[bytes] | DigestTable) -> str:
    """Return the hexadecimal digest of samples, given their digests in index order."""
    table = sample_digests.tobytes() if isinstance(sample_digests, np.ndarray) else b"".join(sample_digests)
    return hashlib.blake2b(table, digest_size=DIGEST_BYTES).hexdigest()


def array_digest(array: npt.NDArray[np.generic]) -> str:
    """Return the hexadecimal digest of an array's dtype, shape and little-endian bytes."""
    plain = np.ascontiguousarray(array)
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    digest.update(f"{plain.dtype.newbyteorder('<').str}{plain.shape}".encode())
    digest.update(plain.astype(plain.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()
