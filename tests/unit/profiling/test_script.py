"""``storebench profile SCRIPT`` runs the script as Python itself does, and adds a verdict."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from storebench.profiling.profile_report import Bound
from tests.support.profiled import command, environment, profile, run

LOOP = """\
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return torch.full((3, 4, 4), index), index

def train(context="fork"):
    total = 0
    for images, labels in DataLoader(Images(), batch_size=4, num_workers=1, multiprocessing_context=context):
        total += int(labels.sum())
    print(total, __name__, sys.argv[1:])

"""

SCRIPTS = {
    "own exit code": "import atexit\natexit.register(lambda: print('exit', Images))\ntrain()\nsys.exit(7)\n",
    "exit at once": "import os\ntrain()\nsys.stdout.flush()\nos._exit(7)\n",
    "thread": "import concurrent.futures.process, threading\nthreading.Thread(target=train).start()\n",
    "forked": "import os\nif os.fork() == 0:\n    train()\n    sys.exit(0)\nos.wait()\n",
    "error": "def fail():\n    raise KeyError('key')\ntrain()\nfail()\n",
    "interrupted": "train()\nraise KeyboardInterrupt\n",
    "terminated": "train()\nsys.stdout.flush()\nimport signal\nsignal.raise_signal(15)\n",
    "own handler": (
        "import signal\nown = lambda *about: (callable(before) and before(*about), print('own handler'))\n"
        "before = signal.signal(15, own)\ntrain()\nsignal.raise_signal(15)\n"
    ),
    "own hook": "sys.excepthook = lambda kind, error, trace: print('own hook', error, file=sys.stderr)\ntrain()\n1 / 0\n",
    "wrong syntax": "train(\n",
    "spawned": "if __name__ == '__main__':\n    train('spawn')\n",
    "path": "import statistics\nprint(sys.path, sys.argv[0], __file__, __spec__, statistics.mine)\ntrain()\n",
}


def split(stderr: str) -> tuple[list[str], list[str]]:
    """Return the script's lines and ours, which begin with the name and go on indented."""
    own: list[str] = []
    rest: list[str] = []
    is_own = False
    for line in stderr.splitlines():
        is_own = line.startswith("storebench profile: ") or (
            is_own and line.startswith("  ") and "File " not in line[:8]
        )
        (own if is_own else rest).append(line)
    return rest, own


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_as_in_python(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    (folder / "train.py").write_text(LOOP + SCRIPTS[name])
    (folder / "statistics.py").write_text("mine = 7\n")  # the script's own
    for other in ("statistics", "json", "queue"):  # which the script does not see
        (tmp_path / f"{other}.py").write_text("raise SystemExit('imported')\n")
    words = ("sub/train.py", "--help", "-m", "x")
    expected, done = run(*words, folder=tmp_path), profile(*words, folder=tmp_path)
    rest, own = split(done.stderr)
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout)
    assert rest == expected.stderr.splitlines()
    assert own[0].startswith("storebench profile: ")
    assert len(own) <= 12
    assert (len(own) > 2) == (name != "wrong syntax")


UNSEEN = {
    "spawned process": (
        "import torch.multiprocessing\nif __name__ == '__main__':\n    torch.multiprocessing.spawn(train)\n",
        "those that it started other than by fork were not seen",
    ),
    "other program": (
        "import os\nos.execv('/bin/true', ['true'])\n",
        "not seen: the program that this one becomes",
    ),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_is_not_seen_is_told(name: str, tmp_path: Path) -> None:
    text, line = UNSEEN[name]
    (tmp_path / "train.py").write_text(LOOP.replace('context="fork"', 'rank=0, context="fork"') + text)
    done = profile("train.py", folder=tmp_path)
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert line in done.stderr


def test_a_module_runs_as_in_python(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(LOOP + "train()\n1 / 0\n")
    words = ("-m", "package.train", "--help")
    expected, done = run(*words, folder=tmp_path), profile(*words, folder=tmp_path)
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout)
    ours = done.stderr[done.stderr.index("Traceback") :].splitlines()
    assert [line for line in expected.stderr.splitlines() if "runpy" not in line][-4:] == ours[-4:]
    assert "storebench/profiling" not in done.stderr


def test_of_workers_that_die_the_records_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # Python leaves a folder there for each process that dies
    dies = (
        "import os\nImages.__getitem__ = lambda self, index: os._exit(3) if index == 30 else (index, index)\n"
    )
    (tmp_path / "train.py").write_text(LOOP + dies + "train()\n")
    done = profile("--out", "out", "train.py", folder=tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "storebench-error" not in done.stderr
    assert (tmp_path / "out" / "profile.json").is_file()


def test_a_folder_and_a_sweep_are_written_if_asked_for(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP + "train()\n")
    done = profile("--sweep", "--out", "out/put", "train.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out/put/profile.json").read_text())
    assert report["is_swept"]
    assert {"0", "1", "2"} <= set(report["by_workers"])
    assert report["by_workers"]["1"] == pytest.approx(1.0)
    if report["bound"] == Bound.FEW_WORKERS:
        assert report["gain"] == report["by_workers"][str(report["workers_needed"])]
    events = json.loads((tmp_path / "out/put/trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in spans} == {"wait", "loop", "dataset", "collate"}
    assert len({event["tid"] for event in spans}) == 2
    assert report["text"].splitlines()[0] in (tmp_path / "out/put/index.html").read_text()


def test_a_profile_is_reported_traced_and_planned_with(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP + "train()\n")
    done = profile("--ceiling", "--out", "out", "train.py", folder=tmp_path)
    facts = json.loads((tmp_path / "out/profile.json").read_text())
    assert (facts["steps"], facts["batch_size"]) == (10, 4)
    assert facts["cached_s"] > 0
    shown = run("-m", "storebench", "report", "out", folder=tmp_path)
    assert shown.stdout.splitlines() == split(done.stderr)[1]
    told = run("-m", "storebench", "report", "out", "--json", folder=tmp_path)
    assert json.loads(told.stdout) == facts
    run("-m", "storebench", "trace", "out", "--out", "timeline.json", folder=tmp_path)
    assert (tmp_path / "timeline.json").read_text() == (tmp_path / "out/trace.json").read_text()
    plan = ("-m", "storebench", "plan", "out", "--json", "--accelerator", "mine=1000000000", "--workers")
    rates = [
        dict(json.loads(run(*plan, workers, folder=tmp_path).stdout)["rows"])["workers"]
        for workers in ("1", "2")
    ]
    assert float(rates[1].replace(",", "")) == pytest.approx(2 * float(rates[0].replace(",", "")), rel=0.02)
    for more in (["--iops", "5"], ["other"]):
        refused = run("-m", "storebench", "plan", "out", *more, "--accelerator", "a100", folder=tmp_path)
        assert refused.returncode == 2
        assert f"{more[0]}: the plan of a profile stands alone" in refused.stderr


def test_of_too_few_steps_there_is_no_plan(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP + "Images.__len__ = lambda self: 4\ntrain()\n")
    done = profile("--out", "out", "train.py", folder=tmp_path)
    shown = run("-m", "storebench", "report", "out", folder=tmp_path)
    assert shown.stdout == done.stderr == "storebench profile: too few steps; try a longer loop\n"
    refused = run("-m", "storebench", "plan", "out", "--accelerator", "a100", folder=tmp_path)
    assert refused.returncode == 3
    assert refused.stderr == "storebench: this profile has too few steps. Profile a longer loop.\n"


def test_the_work_of_other_programs_is_seen(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP + "train()\ntrain()\n")
    computing = (sys.executable, "-c", "while True: pass")
    others = [subprocess.Popen(computing) for _ in os.sched_getaffinity(0)]
    try:
        done = profile("train.py", folder=tmp_path)
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert "  other work took " in done.stderr


READS = """\
import time
from pathlib import Path
from PIL import Image
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    paths = sorted(Path("images").iterdir())
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        with self.paths[index].open("rb") as file:
            time.sleep(0.02)
            return Image.open(file).getpixel((0, 0))[0]

for batch in DataLoader(Images(), batch_size=8):
    pass
"""


@pytest.mark.slow
def test_the_files_that_were_seen_are_converted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(READS)
    (tmp_path / "images").mkdir()
    (tmp_path / "cv2").mkdir()  # no module
    for number in range(64):
        Image.new("RGB", (16, 16), (number, 0, 0)).save(tmp_path / f"images/{number}.jpg")
    words = command("--convert", "--out", "out", "train.py")
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stderr is not None
        lines = []
        for line in running.stderr:
            lines.append(line)
            if line.startswith("converting lmdb"):
                os.killpg(running.pid, signal.SIGINT)  # as Ctrl-C in a terminal
    assert running.returncode == 0  # the script's own
    assert "Traceback" not in "".join(lines)
    assert f"--dataset {tmp_path / 'images'}: " in "".join(lines)
    assert (tmp_path / "out/run/run.json").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.py"], "nowhere.py: there is no such script"),
        (["--out", "/dev/null/x", __file__], "/dev/null/x"),
        (["-m", "nowhere_at_all"], "nowhere_at_all: there is no module of this name"),
        ([], "missing argument"),
    ],
)
def test_refusals(words: list[str], message: str, tmp_path: Path) -> None:
    done = profile(*words, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


RANKS = """\
import os, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        time.sleep(0.02 if os.environ["RANK"] == "1" else 0)
        return index

torch.distributed.init_process_group("gloo")
for batch in DataLoader(Slow(), batch_size=4):
    torch.distributed.all_reduce(torch.ones(1))
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_of_ranks_the_slow_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = run(*launcher, "-m", "storebench", "profile", "--out", "out", "train.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    own = split(done.stderr)[1]
    for rank in (0, 1):
        assert sum(line.startswith(f"storebench profile: rank {rank}: ") for line in own) == 1
        assert (tmp_path / f"out/rank{rank}/profile.json").is_file()
    assert any("limited by a slow rank: rank 1 waits" in line for line in own)
