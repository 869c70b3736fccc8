"""`storebench doctor` as a person and a program see it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from storebench.errors import PLYVEL
from storebench.probes.machine import mount_of

Cli = Callable[..., subprocess.CompletedProcess[str]]


def test_it_says_what_works_here_and_leaves_nothing_behind(cli: Cli, disk: Path) -> None:
    folder = disk / "stores"
    folder.mkdir()
    done = cli("doctor", str(folder))
    assert done.returncode == 0, done.stderr
    assert f"ok    cold cells on {mount_of(folder).fstype}" in done.stdout
    assert "reached and verified" in done.stdout
    assert list(folder.iterdir()) == []


def test_json_lists_findings_with_advice_for_what_does_not_work(cli: Cli, shm: Path) -> None:
    done = cli("doctor", str(shm.parent), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["environment"]["libraries"]["numpy"] == np.__version__
    checks = {check["name"]: check for check in found["checks"]}
    cold = checks["cold cells on tmpfs"]
    assert cold["state"] == "no"
    assert "cold cannot exist on tmpfs" in cold["found"]
    assert all(check["advice"] for check in checks.values() if check["state"] != "ok")
    assert {"h5py", "lmdb", PLYVEL, "torch", "free space", "swap"} <= set(checks)


def test_a_folder_that_is_not_there_is_wrong_usage(cli: Cli) -> None:
    done = cli("doctor", "nowhere")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "no such folder" in done.stderr
