"""Numbers of accelerators and parameter servers from the figures of a cluster: ``python -m benchmarks.sizing``.

The formulas are derived in docs/planner.md, "Sizing".
"""

import argparse
import math
import sys
from collections.abc import Iterable, Sequence

from storebench.units import number_of

_ROUNDING = 1e-9


def speed_up(accelerators: int, ratio: float) -> float:
    """Return the speed-up over one accelerator; the ratio is its overhead over its compute."""
    return (1 + ratio) / (1 / accelerators + ratio)


def accelerators_for(wish: float, ratio: float) -> int | None:
    """Return the fewest accelerators that reach a speed-up; None if no number does."""
    left = 1 + ratio - wish * ratio
    return max(1, math.ceil(wish / left - _ROUNDING)) if left > 0 else None


def exchange_s(size: float, workers: int, servers: int, bytes_per_s: float) -> float:
    """Return the seconds in which all workers send their gradients of `size` bytes and receive the weights."""
    return 2 * size * max(1, workers / servers) / bytes_per_s


def servers_for(size: float, workers: int, bytes_per_s: float, compute_s: float) -> int | None:
    """Return the fewest servers with which the exchange takes no longer than the compute; None if no number does."""
    if exchange_s(size, 1, 1, bytes_per_s) > compute_s:
        return None
    return max(1, math.ceil(exchange_s(size, workers, 1, bytes_per_s) / compute_s - _ROUNDING))


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown below its title."""
    lines = (head, ["---:"] * len(head), *rows)
    return f"\n**{title}**\n\n" + "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def accelerator_answer(wish: float, ratio: float) -> str:
    """Return the number of accelerators for a speed-up in words."""
    found = accelerators_for(wish, ratio)
    if found is None:
        return f"No number of accelerators is {wish:g} times as fast as one: the limit is {1 + 1 / ratio:.3g} times."
    return f"A speed-up of {wish:g}: {number_of(found, 'accelerator')}."


def server_answer(size: float, workers: int, bytes_per_s: float, compute_s: float) -> str:
    """Return the number of servers for some workers in words."""
    found = servers_for(size, workers, bytes_per_s, compute_s)
    if found is None:
        alone_ms = 1000 * exchange_s(size, 1, 1, bytes_per_s)
        return f"No number of servers hides the exchange: a worker's own link takes {alone_ms:,.1f} ms."
    return f"{number_of(workers, 'worker')}: {number_of(found, 'parameter server')} to hide the exchange."


def positive(text: str) -> float:
    """Parse a positive, finite number."""
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError
    return value


def count(text: str) -> int:
    """Parse a number of things."""
    return int(positive(str(int(text))))


def main(words: Sequence[str]) -> None:
    """Print the table and both answers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizing", description=__doc__)
    for name, what in (
        ("parameters-mb", "size of all weights"),
        ("link-mb-per-s", "bandwidth of each node, in each direction"),
        ("compute-ms", "forward and backward of a mini-batch on one accelerator"),
    ):
        parser.add_argument(f"--{name}", type=positive, required=True, help=what)
    parser.add_argument("--overhead-ms", type=positive, help="rest of its step [default: the exchange]")
    parser.add_argument("--workers", type=count, default=8, help="[default: 8]")
    parser.add_argument("--speed-up", type=positive, help="wish [default: 80%% of the workers]")
    options = parser.parse_args(words)
    size, rate, compute_s = options.parameters_mb * 1e6, options.link_mb_per_s * 1e6, options.compute_ms / 1e3
    overhead_s = options.overhead_ms / 1e3 if options.overhead_ms else exchange_s(size, 1, 1, rate)
    ratio = overhead_s / compute_s
    counts = sorted({2**power for power in range(20) if 2**power < options.workers} | {options.workers})
    speeds = {number: speed_up(number, ratio) for number in counts}
    rows = [(f"{number:,}", f"{speed:.2f}", f"{speed / number:.0%}") for number, speed in speeds.items()]
    head = ("accelerators", "speed-up", "efficiency")
    print(table(f"One mini-batch, divided; overhead ratio {ratio:.3g}", head, rows))
    print(f"\n{accelerator_answer(options.speed_up or 0.8 * options.workers, ratio)}")
    print(server_answer(size, options.workers, rate, compute_s))


if __name__ == "__main__":
    main(sys.argv[1:])
