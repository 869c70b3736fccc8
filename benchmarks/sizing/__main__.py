"""Size a job as Zou et al. (2017) do: convolution settings, mini-batch, accelerators and parameter servers, all measured here.

docs/planner.md, "Sizing", derives the formulas. The networks are LeNet on MNIST and cifar10_quick on CIFAR-10.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.sizing.calculate import (
    Parser,
    accelerator_answer,
    count,
    exchange_s,
    positive,
    server_answer,
    speed_up,
    step_s,
    table,
)
from benchmarks.sizing.jobs import place, run
from benchmarks.sizing.servers import UNTIMED, Job, Phase, network
from benchmarks.sizing.sweep import TASKS, read, sized, trial
from storebench.errors import EXIT_OK, StorebenchError, UsageError, from_os_error
from storebench.fileio.whole_files import write_whole
from storebench.system import interrupts
from storebench.system.isolated import apart
from storebench.training.models import MODELS
from storebench.units import parse_bytes, rounded_bytes

LONGEST_STEP_S = 30.0
WORKERS = SERVERS = 3
BATCH = 48
"""Images of a step of the parameter-server job: any number of its workers can divide them."""

OUTLOOK = (8, 16, 64)
"""Numbers of accelerators that are predicted only."""


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = Parser(prog="python -m benchmarks.sizing", description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", choices=("batch", "servers"), help="part to run [default: both]")
    parser.add_argument("--dataset", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--batch-sizes", type=count, nargs="+", default=[16, 64, 256, 512])
    parser.add_argument("--seeds", type=count, default=2, help="runs to the loss of each size [default: 2]")
    parser.add_argument("--images", type=count, default=30_000, help="most of a run [default: 30,000]")
    parser.add_argument("--memory", default="2 GiB", help="limit of the process [default: 2 GiB]")
    parser.add_argument("--link-mb-per-s", type=positive, default=20.0, help="limit of links [default: 20]")
    parser.add_argument("--compute-ms", type=positive, default=200.0, help="emulated compute [default: 200]")
    parser.add_argument("--steps", type=count, default=12, help="of each phase of the job [default: 12]")
    parser.add_argument("--free", action="store_true", help="workers do not wait for each other")
    parser.add_argument("--speed-up", type=positive, default=8.0, help="wish [default: 8]")
    parser.add_argument("--out", type=Path, help="file for all figures (JSON)")
    options = parser.parse_args(words)
    if options.steps <= UNTIMED:
        parser.error(f"argument --steps: at least {UNTIMED + 1}, for the first {UNTIMED} do not count")
    try:
        options.memory_bytes = parse_bytes(options.memory)
    except ValueError as error:
        parser.error(f"argument --memory: {error}")
    return options


def batch(dataset: str, options: argparse.Namespace) -> dict[str, Any]:
    """Choose convolution settings and mini-batch of one network, and print both tables."""
    (model, loss), images = TASKS[dataset], read(dataset)
    if max(options.batch_sizes) > len(images.labels):
        raise UsageError(f"a mini-batch has at most all {len(images.labels):,} images", where="--batch-sizes")
    source = f"{model} on {dataset} ({images.origin})"
    times = apart(trial, dataset, len(os.sched_getaffinity(0)))
    chosen = min(times, key=lambda settings: times[settings])
    print(
        table(
            f"Convolution settings of {source}, mini-batch {MODELS[model].batch_size}",
            ("settings", "ms per step", ""),
            [(one, f"{1e3 * step_s:.1f}", "chosen" * (one is chosen)) for one, step_s in times.items()],
        )
    )
    sweep = [
        apart(sized, dataset, size, chosen, options.seeds, options.images)
        for size in sorted(set(options.batch_sizes))
    ]
    fitting = [one for one in sweep if one.to_loss_s and one.peak_bytes <= options.memory_bytes]
    best = min(fitting, key=lambda one: one.to_loss_s or 0.0, default=None)
    rows = [
        (
            one.batch,
            f"{one.batch / one.step_s:,.0f}",
            rounded_bytes(one.peak_bytes),
            " / ".join("not reached" if steps is None else f"{steps:,}" for steps in one.steps),
            "-" if one.to_loss_s is None else f"{one.to_loss_s:.1f}",
            "chosen" * (one is best),
        )
        for one in sweep
    ]
    head = ("mini-batch", "images/s", "peak memory", f"steps to loss {loss:g}, by seed", "seconds to it", "")
    print(table(f"Mini-batch of {source}, {chosen}", head, rows))
    if best is None:
        print("\nNo mini-batch reaches the loss within the limits of memory and images.")
    return {
        "origin": images.origin,
        "settings": [dataclasses.asdict(one) | {"step_s": step_s} for one, step_s in times.items()],
        "chosen": dataclasses.asdict(chosen),
        "sweep": [dataclasses.asdict(one) for one in sweep],
        "mini_batch": best and best.batch,
    }


def servers(options: argparse.Namespace) -> dict[str, Any]:
    """Run the parameter-server job, and print what was predicted and measured of it."""
    compute_s = options.compute_ms / 1000
    size = sum(parameter.nbytes for parameter in network().parameters())
    exchanges = [
        Phase(workers=WORKERS, servers=number, beside=beside, compute_s=compute_s)
        for beside in (False, True)
        for number in range(1, SERVERS + 1)
    ]
    divided = [
        Phase(workers=number, servers=number, compute_s=compute_s / number)
        for number in range(1, WORKERS + 1)
    ]
    job = Job(phases=[*exchanges, *divided], steps=options.steps, batch=BATCH, lock_step=not options.free)
    slowest_s = step_s(compute_s, exchange_s(size, WORKERS, 1, options.link_mb_per_s * 1e6), beside=False)
    if slowest_s > LONGEST_STEP_S:
        raise UsageError(
            f"a step would take {slowest_s:,.0f} s", hint="Raise --link-mb-per-s or lower --compute-ms."
        )
    with place(job.ranks, options.link_mb_per_s * 1e6) as where:
        taken = run(job, where)
    rate = where.bytes_per_s
    print(
        f"\nThe links reach {rate / 1e6:.1f} MB/s ({where.words}). The accelerators are emulated: {options.compute_ms:g} ms."
    )
    expected = [
        step_s(compute_s, exchange_s(size, WORKERS, each.servers, rate), beside=each.beside)
        for each in exchanges
    ]
    rows = [
        (each.servers, "beside" if each.beside else "after", *_compared(1000 * guess, 1000 * found, 0))
        for each, guess, found in zip(exchanges, expected, taken, strict=False)
    ]
    head = ("servers", "exchange and compute", "predicted ms", "measured ms", "error")
    title = f"Step of {WORKERS} workers that exchange {size / 1e6:.2f} MB, {where.words}"
    print(table(title, head, rows))
    print(f"\n{server_answer(size, WORKERS, rate, compute_s)}")
    alone_s, *more_s = taken[len(exchanges) :]
    ratio = alone_s / compute_s - 1
    measured = dict(enumerate([1.0, *(alone_s / each for each in more_s)], start=1))
    rows = []
    for number in (*measured, *OUTLOOK):
        guess = speed_up(number, ratio)
        known = _compared(guess, measured[number], 2) if number in measured else (f"{guess:.2f}", "-", "-")
        rows.append((number, *known, f"{guess / number:.0%}"))
    head = ("accelerators", "predicted speed-up", "measured", "error", "efficiency")
    print(table(f"One mini-batch, divided; overhead ratio {ratio:.2f}, {where.words}", head, rows))
    print(f"\n{accelerator_answer(options.speed_up, ratio)}")
    return {
        "link_bytes_per_s": rate,
        "place": where.words,
        "parameter_bytes": size,
        "overhead_ratio": ratio,
        "phases": [
            dataclasses.asdict(each) | {"step_s": s} for each, s in zip(job.phases, taken, strict=True)
        ],
    }


def _compared(predicted: float, measured: float, digits: int) -> tuple[str, str, str]:
    error = predicted / measured - 1
    return f"{predicted:.{digits}f}", f"{measured:.{digits}f}", f"{error:+.1%}"


def main(words: Sequence[str]) -> int:
    """Measure and print; an error is one line and an exit code, as in storebench itself."""
    interrupts.install()
    torch.set_num_threads(1)  # processes are forked from this one, which must have no other threads
    figures: dict[str, Any] = {"torch": torch.__version__}
    try:
        options = parsed(words)
        with interrupts.Raised():
            if options.only != "servers":
                figures |= {name: batch(name, options) for name in options.dataset}
            if options.only != "batch":
                figures["servers"] = servers(options)
            if options.out:
                write_whole(options.out, json.dumps(figures, indent=1) + "\n")
    except (StorebenchError, OSError) as error:
        known = from_os_error(error, error.filename or ".") if isinstance(error, OSError) else error
        print(f"sizing: {known}", file=sys.stderr)
        return known.exit_code
    except KeyboardInterrupt:
        print("sizing: interrupted; everything was removed", file=sys.stderr)
        interrupts.leave()
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
