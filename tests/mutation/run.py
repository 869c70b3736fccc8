"""Mutate the code that draws conclusions and count what the tests notice: ``python -m tests.mutation.run``.

Each group of ``targets.toml`` is mutated by mutmut in a copy of the tree. A mutant is killed when a test fails or,
twice, never ends. Those that behave as the original does are listed in ``equivalent.toml``, each with its reason.
``--sample N`` tries N mutants per module, drawn by ``--seed``; without it all of them are tried, which takes hours. A share
is that of a fresh draw only if no test was written for its survivors, so each published table has a seed of its own.
"""

import argparse
import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
HITS = "mutation_hits"
"""Name of `tests.mutation.hits` in the copy's package."""
COPIED = (
    "storebench",
    "tests",
    "benchmarks",
    "docs",
    "results",
    "scenarios",
    "README.md",
    "Makefile",
    "pyproject.toml",
)
SURVIVED = 0
TIMED_OUT = (24, 36, 152, 255, -24)  # of a mutant whose tests took 15 times as long as they should
NOT_RUN = (None, 33)  # mutmut's exit codes of a mutant that was skipped or that no test reaches
REQUIRED = 0.90


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """What happened to the mutants of one module."""

    group: str
    module: str
    mutants: int
    tried: int
    killed: int
    equivalent: int
    survivors: tuple[str, ...]

    @property
    def share(self) -> float:
        """Killed mutants over those tried that are not equivalent."""
        return self.killed / max(1, self.tried - self.equivalent)


def main() -> int:
    """Run every group that was asked for, print the table, and return 1 where a group misses the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    targets = tomllib.loads((HERE / "targets.toml").read_text(encoding="utf-8"))
    parser.add_argument("groups", nargs="*", default=list(targets), help=f"any of {', '.join(targets)}")
    parser.add_argument("--sample", type=int, default=0, help="mutants per module; 0 tries all")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the draw; a published table has its own")
    options = parser.parse_args()
    unknown = set(options.groups) - set(targets)
    if unknown:
        parser.error(f"no group is called {', '.join(sorted(unknown))}; known: {', '.join(targets)}")
    scores: list[Score] = []
    for group in options.groups:
        scores += run_group(group, targets[group], options.sample, options.seed, options.processes)
        print(
            f"\nseed {options.seed}, {options.sample or 'all'} mutants per module\n\n{table(scores)}",
            flush=True,
        )
    for score in scores:
        for survivor in score.survivors:
            print(f"\nsurvived in {score.module}:\n{survivor}")
    return int(any(total.share < REQUIRED for total in totals(scores)))


def run_group(
    group: str, target: dict[str, list[str]], sample: int, seed: int, processes: int
) -> list[Score]:
    """Mutate one group's modules in a copy of the tree and return a score for each."""
    with tempfile.TemporaryDirectory(prefix="storebench-mutation-") as scratch:
        copy = Path(scratch)
        modules = [name for name in target["modules"] if (ROOT / name).is_file()]
        tests = [name for name in target["tests"] if (ROOT / name.partition("::")[0]).exists()]
        _copy_tree(copy, modules, tests, target.get("left_out", []))
        learn(copy)
        chosen = {module: _chosen(copy, module, sample, seed) for module in modules}
        names = [name for picked in chosen.values() for name in picked]
        print(f"{len(names)} mutants of {', '.join(modules)}", flush=True)
        _mutmut(copy, "run", "--max-children", str(processes), *(names if sample else ()), quiet=False)
        late = [name for module in modules for name in chosen[module] if _is_late(copy, module, name)]
        if late:  # a machine that was busy elsewhere looks the same as a mutant that never ends
            _mutmut(copy, "run", "--max-children", str(processes), *late, quiet=False)
        return [_score(copy, group, module, chosen[module]) for module in modules]


def _copy_tree(copy: Path, modules: Sequence[str], tests: Sequence[str], left_out: Sequence[str]) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.is_file():
            shutil.copy(source, copy / name)
    shutil.copy(HERE / "hits.py", copy / "storebench" / f"{HITS}.py")
    hooks = f"from storebench.{HITS} import pytest_runtest_setup, pytest_runtest_teardown"
    for name, line in (
        ("storebench/__init__.py", f"import storebench.{HITS}"),
        ("tests/conftest.py", hooks),
    ):
        with (copy / name).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    settings = {
        "source_paths": ["storebench"],
        "only_mutate": list(modules),
        "pytest_add_cli_args": [
            *("-p", "no:cacheprovider", "-p", "no:randomly", "--full"),
            *(f"--deselect={name}" for name in left_out),
        ],
        "pytest_add_cli_args_test_selection": list(tests),
        "also_copy": [name for name in COPIED if name not in ("storebench", "pyproject.toml")],
    }
    with (copy / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("\n[tool.mutmut]\n")
        file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())


def learn(copy: Path) -> str:
    """Make the mutants, record which tests reach which functions in any process, and return mutmut's output."""
    return _mutmut(copy, "run", "no-such-mutant", STOREBENCH_MUTATION_HITS=str(copy / "hits.txt"))


def _mutmut(copy: Path, *arguments: str, quiet: bool = True, **variables: str) -> str:
    """Run mutmut in the copy, with further environment variables, and return its output."""
    command = [sys.executable, "-m", "mutmut", *arguments]
    done = subprocess.run(
        command, cwd=copy, capture_output=True, text=True, check=False, env={**os.environ, **variables}
    )
    if done.returncode and not quiet and "🎉" not in done.stdout:
        raise SystemExit(f"mutmut {arguments[0]} failed:\n{done.stdout[-3000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def _results(copy: Path, module: str) -> dict[str, int | None]:
    path = copy / "mutants" / f"{module}.meta"
    if not path.is_file():
        raise SystemExit(f"mutmut made no mutants of {module}: do its tests pass?")
    found: dict[str, int | None] = json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
    return found


def _is_late(copy: Path, module: str, name: str) -> bool:
    return _results(copy, module)[name] in TIMED_OUT


def _chosen(copy: Path, module: str, sample: int, seed: int) -> list[str]:
    names = sorted(_results(copy, module))
    if not sample or len(names) <= sample:
        return names
    return sorted(random.Random(f"{seed}:{module}").sample(names, sample))


def _score(copy: Path, group: str, module: str, names: Sequence[str]) -> Score:
    results = _results(copy, module)
    known = tomllib.loads((HERE / "equivalent.toml").read_text(encoding="utf-8")).get("mutant", [])
    equivalents = {(entry["function"], entry["line"]) for entry in known}
    survivors, equivalent = [], 0
    for name in names:
        if results[name] not in (SURVIVED, *NOT_RUN):
            continue
        diff = _mutmut(copy, "show", name)
        function = re.sub(r"__mutmut_\d+$", "", name.rpartition(".")[2])
        added = [line[1:].strip() for line in diff.splitlines() if re.match(r"\+(?!\+)", line)]
        if any((function, line) in equivalents for line in added):
            equivalent += 1
        else:
            survivors.append(
                f"{function} ({'not reached' if results[name] in NOT_RUN else 'survived'})\n{diff}"
            )
    return Score(
        group=group,
        module=module,
        mutants=len(results),
        tried=len(names),
        killed=len(names) - equivalent - len(survivors),
        equivalent=equivalent,
        survivors=tuple(survivors),
    )


def totals(scores: Sequence[Score]) -> list[Score]:
    """Return one score for each group, with the survivors of all its modules."""
    return [
        Score(
            group=group,
            module=f"{len(own)} module{'s' * (len(own) > 1)}",
            mutants=sum(score.mutants for score in own),
            tried=sum(score.tried for score in own),
            killed=sum(score.killed for score in own),
            equivalent=sum(score.equivalent for score in own),
            survivors=tuple(survivor for score in own for survivor in score.survivors),
        )
        for group in dict.fromkeys(score.group for score in scores)
        if (own := [score for score in scores if score.group == group])
    ]


def table(scores: Sequence[Score]) -> str:
    """Return the scores as a Markdown table, with a row for each group below its modules."""
    rows = []
    for total in totals(scores):
        own = [(f"`{score.module}`", score) for score in scores if score.group == total.group]
        rows += [
            f"| {total.group} | {name} | {score.mutants} | {score.tried} | {score.killed} | {score.equivalent} "
            f"| {len(score.survivors)} | {score.share:.0%} |"
            for name, score in [*own, (total.module, total)]
        ]
    head = "| group | module | mutants | tried | killed | equivalent | survived | killed of the rest |"
    return "\n".join([head, "|---|---|---|---|---|---|---|---|", *rows])


if __name__ == "__main__":
    sys.exit(main())
