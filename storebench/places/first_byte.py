"""A proxy before a server, in a process of its own: a first byte held back, or a line with a round trip; both paced.

It knows no protocol: an answer begins with the first bytes from the server after bytes of the client.
"""

import argparse
import asyncio
import contextlib
import math
import selectors
import socket
import time
from dataclasses import dataclass

_CHUNK_BYTES = 1 << 17
_UNDER_WAY = 256


@dataclass
class Proxy:
    """One listening port before one server; all of its connections share one line."""

    upstream: int
    first_byte_s: float
    round_trip_s: float
    bytes_per_s: float
    free_at: float = 0.0
    """When the line has carried all that it was asked to carry."""

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
                held_until = asked_at.pop() + self.first_byte_s if asked_at else 0.0
                await line.put((max(held_until, time.monotonic() + self.round_trip_s), chunk))
            await line.join()

        async def arrivals() -> None:
            while True:
                due, chunk = await line.get()
                await asyncio.sleep(due - time.monotonic())
                now = time.monotonic()
                self.free_at = max(self.free_at, now) + len(chunk) / self.bytes_per_s
                await asyncio.sleep(self.free_at - now)
                writer.write(chunk)
                await writer.drain()
                line.task_done()

        with contextlib.suppress(OSError):  # without the server, the client sees a closed connection
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.upstream)
            tasks = [asyncio.ensure_future(one) for one in (requests(), answers(), arrivals())]
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
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
    parser.add_argument("--first-byte-ms", type=float, default=0.0)
    parser.add_argument("--round-trip-ms", type=float, default=0.0)
    parser.add_argument("--mb-s", type=float, default=math.inf)
    asked = parser.parse_args()
    proxy = Proxy(asked.upstream, asked.first_byte_ms / 1e3, asked.round_trip_ms / 1e3, asked.mb_s * 1e6)
    # Its waits are not rounded to milliseconds, as those of epoll are.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(_run(socket.socket(fileno=asked.socket), proxy))


if __name__ == "__main__":
    main()
