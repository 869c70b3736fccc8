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
    accelerator_answer,
    count,
    exchange_s,
    server_answer,
    speed_up,
    step_s,
    table,
)
from benchmarks.sizing.jobs import place, run
from benchmarks.sizing.servers import Job, Phase, network
from benchmarks.sizing.sweep import TASKS, read, sized, trial
from storebench.errors import StorebenchError
from storebench.system import interrupts
from storebench.system.isolated import apart
from storebench.system.whole_files import write_whole
from storebench.training.models import MODELS
from storebench.units import parse_bytes, rounded_bytes

RANKS = 3
"""Most workers of the parameter-server job, and most servers."""
BATCH = 48
"""Images of a step of the parameter-server job: any number of its workers can divide them."""
LINK_BYTES_PER_S, COMPUTE_S, SPEED_UP = 20e6, 0.2, 8.0
"""Limit of the job's links, emulated compute of its steps, and the speed-up to wish for."""


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sizing", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("--only", choices=("batch", "servers"), help="part to run [default: both]")
    parser.add_argument("--dataset", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--batch-sizes", type=count, nargs="+", default=[16, 64, 256, 512])
    parser.add_argument("--seeds", type=count, default=2, help="runs to the loss of each size [default: 2]")
    parser.add_argument("--images", type=count, default=30_000, help="most of a run [default: 30,000]")
    parser.add_argument(
        "--memory", type=parse_bytes, default="2 GiB", help="limit of the process [default: 2 GiB]"
    )
    parser.add_argument("--steps", type=count, default=10, help="timed, of each phase [default: 10]")
    parser.add_argument("--out", type=Path, help="file for all figures (JSON)")
    return parser.parse_args(words)


def batch(dataset: str, options: argparse.Namespace) -> dict[str, Any]:
    """Choose convolution settings and mini-batch of one network, and print both tables."""
    (model, loss), images = TASKS[dataset], read(dataset)
    source = f"{model} on {dataset} ({images.origin})"
    times = apart(trial, dataset, len(os.sched_getaffinity(0)))
    chosen = min(times, key=lambda settings: times[settings])
    rows = [(one, f"{1e3 * step_s:.1f}", "chosen" * (one is chosen)) for one, step_s in times.items()]
    title = f"Convolution settings of {source}, mini-batch {MODELS[model].batch_size}"
    print(table(title, ("settings", "ms per step", ""), rows))
    sweep = [
        apart(sized, dataset, size, chosen, options.seeds, options.images)
        for size in sorted(set(options.batch_sizes))
    ]
    fitting = [one for one in sweep if one.to_loss_s and one.peak_bytes <= options.memory]
    best = min(fitting, key=lambda one: one.to_loss_s or 0.0, default=None)
    lines = [
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
    print(table(f"Mini-batch of {source}, {chosen}", head, lines))
    return {
        "origin": images.origin,
        "settings": [dataclasses.asdict(one) | {"step_s": step_s} for one, step_s in times.items()],
        "chosen": dataclasses.asdict(chosen),
        "sweep": [dataclasses.asdict(one) for one in sweep],
        "mini_batch": best and best.batch,
    }


def servers(steps: int) -> dict[str, Any]:
    """Run the parameter-server job, and print what was predicted and measured of it."""
    size = sum(parameter.nbytes for parameter in network().parameters())
    numbers = range(1, RANKS + 1)
    exchanges = [
        Phase(workers=RANKS, servers=number, beside=beside, compute_s=COMPUTE_S)
        for beside in (False, True)
        for number in numbers
    ]
    divided = [Phase(workers=each, servers=each, compute_s=COMPUTE_S / each) for each in numbers]
    job = Job(phases=[*exchanges, *divided], steps=steps, batch=BATCH)
    with place(job.ranks, LINK_BYTES_PER_S) as where:
        taken = run(job, where)
    rate = where.bytes_per_s
    print(f"\nThe links reach {rate / 1e6:.1f} MB/s. The accelerators are emulated: {1e3 * COMPUTE_S:g} ms.")
    rows = []
    for each, found in zip(exchanges, taken, strict=False):
        transfer_s = exchange_s(size, RANKS, each.servers, rate)
        guess = step_s(COMPUTE_S, transfer_s, beside=each.beside)
        order = "beside" if each.beside else "after"
        rows.append(
            (each.servers, order, f"{1e3 * guess:.0f}", f"{1e3 * found:.0f}", f"{guess / found - 1:+.1%}")
        )
    head = ("servers", "exchange and compute", "predicted ms", "measured ms", "error")
    title = f"Step of {RANKS} workers that exchange {size / 1e6:.2f} MB, {where.words}"
    print(table(title, head, rows))
    print(f"\n{server_answer(size, RANKS, rate, COMPUTE_S)}")
    times = dict(enumerate(taken[len(exchanges) :], start=1))
    ratio = times[1] / COMPUTE_S - 1
    speeds = [(number, speed_up(number, ratio), times[1] / found) for number, found in times.items()]
    lines = [
        (number, f"{guess:.2f}", f"{found:.2f}", f"{guess / found - 1:+.1%}", f"{guess / number:.0%}")
        for number, guess, found in speeds
    ]
    heads = ("accelerators", "predicted speed-up", "measured", "error", "efficiency")
    print(table(f"One mini-batch, divided; overhead ratio {ratio:.2f}, {where.words}", heads, lines))
    print(f"\n{accelerator_answer(SPEED_UP, ratio)}")
    phases = [dataclasses.asdict(each) | {"step_s": s} for each, s in zip(job.phases, taken, strict=True)]
    return {"link_bytes_per_s": rate, "place": where.words, "parameter_bytes": size, "phases": phases}


def main(words: Sequence[str]) -> int:
    """Measure and print; an error is one line and an exit code, as in storebench itself."""
    interrupts.install()
    torch.set_num_threads(1)  # processes are forked from this one, which must have no other threads
    figures: dict[str, Any] = {"torch": torch.__version__}
    options = parsed(words)
    try:
        with interrupts.Raised():
            if options.only != "servers":
                figures |= {name: batch(name, options) for name in options.dataset}
            if options.only != "batch":
                figures["servers"] = servers(options.steps)
            if options.out:
                write_whole(options.out, json.dumps(figures, indent=1) + "\n")
    except StorebenchError as error:
        print(f"sizing: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("sizing: interrupted; everything was removed", file=sys.stderr)
        interrupts.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
