"""Measure the rates of links and disks of emulated nodes under their limits; each command runs on one node."""

import contextlib
import itertools
import mmap
import os
import socket
import sys
import time
from pathlib import Path

SETTLE_S = 0.4
"""Time at the start that does not count, because a limit lets through a burst after a pause."""

PROBE_S = 1.2
PIECE_BYTES = 1 << 20
READ_BYTES = 256 << 10

_PATIENCE_S = 10.0
_MORE_S = 0.2
_SENT_BYTES = 64 << 10


def receive(address: str, port: str) -> None:
    """Print a line when it listens, receive from one sender until it ends, and print the bytes per second."""
    with socket.create_server((address, int(port))) as server:
        server.settimeout(_PATIENCE_S)
        print("listening", flush=True)
        sender, _ = server.accept()
    buffer = bytearray(PIECE_BYTES)
    counted = 0
    with sender:
        sender.settimeout(_PATIENCE_S)
        begin = time.perf_counter()
        while got := sender.recv_into(buffer):
            counted += got if 0 <= time.perf_counter() - begin - SETTLE_S < PROBE_S else 0
    print(counted / PROBE_S, flush=True)


def send(address: str, port: str) -> None:
    """Send for slightly longer than the receiver counts."""
    piece = bytes(_SENT_BYTES)
    with socket.create_connection((address, int(port)), timeout=_PATIENCE_S) as connection:
        begin = time.perf_counter()
        while time.perf_counter() - begin < SETTLE_S + PROBE_S + _MORE_S:
            connection.sendall(piece)


def read(path: str) -> None:
    """Read a file, bypassing the page cache, and print the bytes per second."""
    ends: list[float] = []
    handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, READ_BYTES) as buffer:
        places = itertools.cycle(range(0, os.fstat(handle).st_size - READ_BYTES + 1, READ_BYTES))
        begin = time.perf_counter()
        while (now := time.perf_counter()) - begin < SETTLE_S + PROBE_S or len(ends) < 2:
            os.preadv(handle, [buffer], next(places))
            ends += [time.perf_counter()] if now - begin >= SETTLE_S else []
    print((len(ends) - 1) * READ_BYTES / (ends[-1] - ends[0]), flush=True)


def hold(folder: str) -> None:
    """Keep all pages of the files below a folder in memory, print a line, and wait for the end of the input."""
    files = [path for path in Path(folder).rglob("*") if path.is_file() and path.stat().st_size]
    with contextlib.ExitStack() as stack:
        for path in files:
            with path.open("rb") as file:
                whole = mmap.mmap(
                    file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ
                )
                stack.enter_context(whole)
        print("held", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _, command, *words = sys.argv
    {"receive": receive, "send": send, "read": read, "hold": hold}[command](*words)
