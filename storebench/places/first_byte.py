"""A proxy before a server, in a process of its own: a first byte held back, or a line with a round trip; both paced.

It knows no protocol: an answer begins with the first bytes from the server after bytes of the client.
"""

import argparse
import asyncio
import contextlib
import selectors
import socket
import time

_CHUNK_BYTES = 1 << 17
_UNDER_WAY = 256


class Pace:
    """A line that all connections share: it carries so many bytes per second."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    async def carry(self, size: int) -> None:
        """Wait until the line has carried `size` bytes, after all that it was asked to carry before."""
        if self._bytes_per_s is not None:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size / self._bytes_per_s
            await asyncio.sleep(self._free_at - now)


class Proxy:
    """One listening port before one server."""

    def __init__(self, upstream: int, first_byte_s: float, round_trip_s: float, pace: Pace) -> None:
        self._upstream = upstream
        self._first_byte_s = first_byte_s
        self._round_trip_s = round_trip_s
        self._pace = pace

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until either side closes it."""
        asked_at: list[float] = []  # when the client began the request that has no answer yet
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_UNDER_WAY)  # when each chunk arrives

        async def requests() -> None:
            while chunk := await reader.read(_CHUNK_BYTES):
                asked_at[:] = asked_at or [time.monotonic()]
                to_server.write(chunk)
                await to_server.drain()
            to_server.write_eof()

        async def answers() -> None:
            while chunk := await from_server.read(_CHUNK_BYTES):
                held_until = asked_at.pop() + self._first_byte_s if asked_at else 0.0
                await line.put((max(held_until, time.monotonic() + self._round_trip_s), chunk))
            await line.join()

        async def arrivals() -> None:
            while True:
                due, chunk = await line.get()
                await asyncio.sleep(due - time.monotonic())
                await self._pace.carry(len(chunk))
                writer.write(chunk)
                await writer.drain()
                line.task_done()

        with contextlib.suppress(OSError):  # without the server, the client sees a closed connection
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._upstream)
            tasks = [asyncio.ensure_future(one) for one in (requests(), answers(), arrivals())]
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            to_server.close()
        writer.close()


def _precise_loop() -> asyncio.AbstractEventLoop:
    """Return a loop whose waits are not rounded to milliseconds, as those of epoll are."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


async def _run(listening: socket.socket, proxy: Proxy) -> None:
    async with await asyncio.start_server(proxy.serve, sock=listening) as server:
        await server.serve_forever()


def main() -> None:
    """Serve on the listening socket that was inherited."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--upstream", type=int, required=True)
    parser.add_argument("--first-byte-ms", type=float, default=0.0)
    parser.add_argument("--round-trip-ms", type=float, default=0.0)
    parser.add_argument("--mb-s", type=float)
    asked = parser.parse_args()
    pace = Pace(None if asked.mb_s is None else asked.mb_s * 1e6)
    proxy = Proxy(asked.upstream, asked.first_byte_ms / 1000, asked.round_trip_ms / 1000, pace)
    with asyncio.Runner(loop_factory=_precise_loop) as runner:
        runner.run(_run(socket.socket(fileno=asked.socket), proxy))


if __name__ == "__main__":
    main()
