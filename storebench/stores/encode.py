"""Encode a dataset's samples in order and in bounded memory, in several processes or threads if that is faster."""

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np

from storebench.codecs import Codec
from storebench.datasets.base import Dataset
from storebench.datasets.files import Originals
from storebench.digests import payload_digest, sample_digest
from storebench.errors import CorruptDataError, IntegrityError
from storebench.probes.machine import usable_cores
from storebench.system.interrupts import Held
from storebench.system.processes import end_with_parent, expend

CHUNK_BYTES = 4 << 20  # decoded bytes of one task; with the two limits below it bounds the memory in flight
CHUNK_SAMPLES = 1024
CHUNK_FILES = 8  # image files of one task: their size is not known before they are read
MAX_ENCODERS = 8
CHUNKS_AN_ENCODER = 2  # tasks that run or wait to be written, per encoder
TRIAL_S = 0.1  # time spent encoding in this process before deciding whether others should help

# Cost of starting encoders, measured on two cores: an interpreter, numpy and Pillow for each. Threads cost nothing.
START_S = 0.3

# Cost of receiving payloads from encoders, measured: about 460 MB/s get through. Those of threads are there already.
TRANSFER_S_PER_BYTE = 2e-9


@dataclass(frozen=True, kw_only=True)
class Chunk:
    payloads: list[bytes]  # the codec's output for each sample
    labels: list[int]  # the label of each sample
    digests: bytes  # the 16-byte digests of the decoded payloads, joined
    squared_error: float = 0.0  # of the pixels of lossy payloads, summed over all


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """A dataset and a codec: everything that a process needs to encode any of the samples."""

    dataset: Dataset
    codec: Codec

    @property
    def in_threads(self) -> bool:
        """Whether encoders are threads of this process: reading and decoding an image file let others run meanwhile."""
        return isinstance(self.dataset, Originals) and self.dataset.thread_safe

    def chunk(self, part: range) -> Chunk:
        encode_one = self._file if isinstance(self.dataset, Originals) else self._image
        samples = [encode_one(index) for index in part]
        return Chunk(
            payloads=[payload for payload, _, _, _ in samples],
            labels=[label for _, label, _, _ in samples],
            digests=b"".join(digest for _, _, digest, _ in samples),
            squared_error=sum(error for *_, error in samples),
        )

    def _file(self, index: int) -> tuple[bytes, int, bytes, float]:
        """Return the bytes of an image file as they are; the digest covers them."""
        payload, label = self.dataset.original(index)
        label = self._checked_label(index, label)
        return payload, label, payload_digest(payload, label), 0.0

    def _image(self, index: int) -> tuple[bytes, int, bytes, float]:
        info = self.dataset.info
        try:
            image, label = self.dataset.sample(index)
        except OSError as error:
            raise CorruptDataError(
                f"sample {index} of {info.name} cannot be read ({error.strerror or error})",
                where=error.filename,
            ) from error
        if image.shape != info.image_shape or image.dtype != np.uint8:
            raise CorruptDataError(
                f"sample {index} of {info.name} is {image.dtype} {image.shape}, not uint8 {info.image_shape}"
            )
        label = self._checked_label(index, label)
        payload = self.codec.encode(image)
        if self.codec.lossless:
            return payload, label, sample_digest(image, label), 0.0
        self.codec.decode_into(payload, stored := np.empty_like(image))
        squares = np.square(np.subtract(stored, image, dtype=np.float32))
        return payload, label, sample_digest(stored, label), float(squares.sum(dtype=np.float64))

    def _checked_label(self, index: int, label: int) -> int:
        info = self.dataset.info
        if not 0 <= label < info.num_classes:
            raise CorruptDataError(
                f"sample {index} of {info.name} has label {label}, but there are {info.num_classes} classes"
            )
        return int(label)


def encode(encoder: Encoder, processes: int | None = None) -> Generator[Chunk]:
    """Yield all samples in order, encoded."""
    dataset, count = encoder.dataset, len(encoder.dataset)
    step = max(1, min(CHUNK_SAMPLES, CHUNK_BYTES // dataset.info.image_bytes))
    if isinstance(dataset, Originals):
        step = CHUNK_FILES
    parts = deque(range(first, min(first + step, count)) for first in range(0, count, step))
    if processes is None:
        spent_s, samples, payload_bytes = 0.0, 0, 0
        while parts and spent_s < TRIAL_S:
            started = time.perf_counter()
            chunk = encoder.chunk(parts.popleft())
            spent_s += time.perf_counter() - started
            samples += len(chunk.labels)
            payload_bytes += sum(map(len, chunk.payloads))
            yield chunk
        most = min(usable_cores(), MAX_ENCODERS)
        share = sum(map(len, parts)) / max(1, samples)
        cost_s = 0.0 if encoder.in_threads else START_S + payload_bytes * share * TRANSFER_S_PER_BYTE
        processes = most if spent_s * share * (1 - 1 / most) > cost_s else 1
    if processes > 1 and len(parts) > 1:
        yield from _encode_in_pool(encoder, parts, min(processes, len(parts)))
    else:
        yield from map(encoder.chunk, parts)


def _encode_in_pool(encoder: Encoder, parts: deque[range], processes: int) -> Iterator[Chunk]:
    if encoder.in_threads:
        pool: Executor = ThreadPoolExecutor(processes, thread_name_prefix="encoder")
    else:
        # Spawned, not forked: the caller may have threads, open stores and locks, which a fork would copy.
        spawn = multiprocessing.get_context("spawn")
        with _interrupts_held_back():
            pool = ProcessPoolExecutor(processes, spawn, initializer=_start_worker, initargs=(encoder,))
    encode_part = encoder.chunk if encoder.in_threads else _encode_in_worker
    pending: deque[Future[Chunk]] = deque()
    try:
        while parts or pending:
            while parts and len(pending) < processes * CHUNKS_AN_ENCODER:
                with _interrupts_held_back():
                    pending.append(pool.submit(encode_part, parts.popleft()))
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise IntegrityError(
            "an encoder process died (killed, or out of memory); nothing half-written was kept",
            hint="Free some memory; 'storebench convert --processes 1' encodes in one process.",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _interrupts_held_back() -> Held:
    # Processes inherit the mask, so that only this process handles Ctrl-C and a closed terminal, and not the encoders
    # or the process that multiprocessing starts to unlink semaphores.
    return Held((signal.SIGINT, signal.SIGHUP))


_worker_encoder: Encoder | None = None  # of this encoder process, sent once instead of with each task


def _start_worker(encoder: Encoder) -> None:
    global _worker_encoder  # noqa: PLW0603 - a pool's initializer has no other place for its result
    _worker_encoder = encoder
    end_with_parent(signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # it has ended before this process asked for that
        os._exit(1)
    expend()


def _encode_in_worker(part: range) -> Chunk:
    assert _worker_encoder is not None
    return _worker_encoder.chunk(part)
