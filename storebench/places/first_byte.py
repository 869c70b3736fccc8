"""A proxy that holds back the first byte of each answer and paces the rest, in a process of its own.

It knows nothing of HTTP: an answer begins with the first bytes from the server after bytes of the client.
"""

import argparse
import asyncio
import contextlib
import socket
import time

_CHUNK_BYTES = 1 << 17


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

    def __init__(self, upstream: int, first_byte_s: float, pace: Pace) -> None:
        self._upstream = upstream
        self._first_byte_s = first_byte_s
        self._pace = pace

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until either side closes it."""
        asked_at: list[float] = []  # when the client began the request that has no answer yet

        async def requests() -> None:
            while chunk := await reader.read(_CHUNK_BYTES):
                asked_at[:] = asked_at or [time.monotonic()]
                to_server.write(chunk)
                await to_server.drain()
            to_server.write_eof()

        async def answers() -> None:
            while chunk := await from_server.read(_CHUNK_BYTES):
                if asked_at:
                    await asyncio.sleep(asked_at.pop() + self._first_byte_s - time.monotonic())
                await self._pace.carry(len(chunk))
                writer.write(chunk)
                await writer.drain()

        with contextlib.suppress(OSError):  # without the server, the client sees a closed connection
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._upstream)
            tasks = [asyncio.ensure_future(requests()), asyncio.ensure_future(answers())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            to_server.close()
        writer.close()


async def _run(listening: socket.socket, proxy: Proxy) -> None:
    async with await asyncio.start_server(proxy.serve, sock=listening) as server:
        await server.serve_forever()


def main() -> None:
    """Serve on the listening socket that was inherited."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--upstream", type=int, required=True)
    parser.add_argument("--first-byte-ms", type=float, required=True)
    parser.add_argument("--mb-s", type=float)
    asked = parser.parse_args()
    pace = Pace(None if asked.mb_s is None else asked.mb_s * 1e6)
    asyncio.run(
        _run(socket.socket(fileno=asked.socket), Proxy(asked.upstream, asked.first_byte_ms / 1000, pace))
    )


if __name__ == "__main__":
    main()
