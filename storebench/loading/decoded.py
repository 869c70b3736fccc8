"""Digests of the bytes and pixels that a producer served, and the difference of a decoder from the default one."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storebench.codecs import decoding_of, get_codec
from storebench.codecs.decoders import largest_difference
from storebench.codecs.original import Choose
from storebench.digests import DIGEST_BYTES, payload_digest, sample_digest
from storebench.formats.base import Batch, Indices, Reader
from storebench.formats.registry import get_format
from storebench.loading.original_files import prepare_files
from storebench.manifest import Manifest
from storebench.settings.backend import Backend

DigestRows = npt.NDArray[np.uint8]
"""One digest per sample, uint8 [n, 16]."""


@dataclass(frozen=True, kw_only=True)
class BatchContent:
    """The content of a batch of an untimed pass.

    Attributes
    ----------
    digests
        Digests of the content that the store's table covers: decoded pixels by the default decoder, or the bytes of image files as they are.
    prepared
        Digests of the pixels that were served, where the table does not cover them: of image files after they were
        cut and resized, and of pixels by a decoder of choice before augmentation. None if the table covers them.
    difference
        Largest absolute difference from the pixels that the default decoder gives, in levels from 0 to 255; None for
        the default decoder.
    """

    digests: DigestRows
    prepared: DigestRows | None = None
    difference: int | None = None


def decoded_by(manifest: Manifest, backend: Backend) -> Manifest:
    """Return a store's manifest for readers that decode as a backend asks: its codec names the decoder, too."""
    if not backend.codec_options:
        return manifest
    return dataclasses.replace(manifest, codec=codec_of(backend))


def seen_pixels(reader: Reader, backend: Backend, indices: Indices, decoded: Batch) -> BatchContent:
    """Return the parts of a batch of images of one size.

    Parameters
    ----------
    decoded
        The pixels that were decoded for `indices`, before augmentation.
    """
    labels = reader.labels[indices]
    own = digest_rows(decoded, labels)
    if not backend.codec_options:
        return BatchContent(digests=own)
    payloads = payloads_of(reader, indices)
    right = decode_all(payloads, backend.codec, reader.image_shape)
    again = decode_all(payloads, codec_of(backend), reader.image_shape)
    digests = digest_rows(right, labels).copy()
    # Pixels that this decoder does not make of the payload are wrong, however near they are.
    digests[(decoded != again).any(axis=(1, 2, 3))] = 0
    return BatchContent(digests=digests, prepared=own, difference=largest_difference(decoded, right))


def seen_files(
    reader: Reader,
    backend: Backend,
    payloads: Sequence[bytes],
    indices: Indices,
    out: Batch,
    views: Sequence[Choose | None],
) -> BatchContent:
    """Return the parts of a batch of original image files; `out` holds the samples made of them by `views`."""
    labels = reader.labels[indices]
    rows = b"".join(map(payload_digest, payloads, labels.tolist()))
    seen = BatchContent(digests=_rows(rows), prepared=digest_rows(out, labels))
    if not backend.codec_options:
        return seen
    right = np.empty_like(out)
    prepare_files(reader, payloads, indices, right, views, codec=backend.codec)
    return dataclasses.replace(seen, difference=largest_difference(out, right))


def codec_of(backend: Backend) -> str:
    """Return the codec of a backend with its decoder."""
    return str(decoding_of(backend.codec, backend.codec_options))


def decode_all(payloads: Sequence[bytes], codec: str, shape: tuple[int, int, int]) -> Batch:
    """Return the pixels of images of one size, uint8 [n, H, W, C]."""
    pixels = np.empty((len(payloads), *shape), np.uint8)
    for payload, image in zip(payloads, pixels, strict=True):
        get_codec(codec).decode_into(payload, image)
    return pixels


def payloads_of(reader: Reader, indices: Indices) -> list[bytes]:
    """Return payloads from a reader, or from its format's auditor if the reader decodes by itself."""
    if reader.payload_codec != "raw":
        return reader.fetch(indices)
    with get_format(reader.manifest.format).auditor(reader.store, reader.manifest) as auditor:
        return auditor.fetch(indices)


def digest_rows(images: Batch, labels: Indices) -> DigestRows:
    """Return the digest of each sample, uint8 [n, 16]."""
    return _rows(
        b"".join(sample_digest(image, int(label)) for image, label in zip(images, labels, strict=True))
    )


def _rows(joined: bytes) -> DigestRows:
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, DIGEST_BYTES)
