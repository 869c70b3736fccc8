"""A proxy before a server, in a process of its own: each first byte is held back, and all answers are paced together.

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


@dataclass
class Proxy:
    """One listening port before one server; all of its connections share one line."""

    upstream: int
    first_byte_s: float
    bytes_per_s: float
    free_at: float = 0.0
    """When the line has carried all that it was asked to carry."""

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
                    await asyncio.sleep(asked_at.pop() + self.first_byte_s - time.monotonic())
                now = time.monotonic()
                self.free_at = max(self.free_at, now) + len(chunk) / self.bytes_per_s
                await asyncio.sleep(self.free_at - now)
                writer.write(chunk)
                await writer.drain()

        with contextlib.suppress(OSError):  # without the server, the client sees a closed connection
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.upstream)
            tasks = [asyncio.ensure_future(task) for task in (requests(), answers())]
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
    parser.add_argument("--first-byte-ms", type=float, default=0.0)
    parser.add_argument("--mb-s", type=float, default=math.inf)
    asked = parser.parse_args()
    proxy = Proxy(asked.upstream, asked.first_byte_ms / 1e3, asked.mb_s * 1e6)
    # Its waits are not rounded to milliseconds, as those of epoll are.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(_run(socket.socket(fileno=asked.socket), proxy))


if __name__ == "__main__":
    main()
