"""Stores on SeaweedFS on loopback, started by the command line as a user starts it."""

import contextlib
import importlib.util
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from storebench.errors import CellFailedError, MissingDependencyError, StorebenchError
from storebench.formats.base import Reader
from storebench.formats.registry import get_format
from storebench.record.manifest import Manifest
from storebench.testing.stores import SmallStore, build_small_store
from tests.support.servers import missing

NEEDS_SERVER = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
Cli = Callable[..., Any]
MNIST = ("--dataset", "mnist", "--synthetic", "--limit", "300", "--compute", "none")
READERS = (
    ("files", "png", "objects"),
    ("files", "png", "boto3"),
    ("npy", "raw", "ranges"),
    ("webdataset", "png", "ranges"),
    ("parquet", "png", "groups"),
    ("lance", "png", "take"),
    ("zarr", "raw", "zarr"),
    ("zarr", "png", "tensorstore"),
)
STREAMS = ("webdataset", "tfrecord")


def needs(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"needs {library}")


@contextlib.contextmanager
def place_up(first_byte_ms: int) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run `storebench place up`, and return its process and what it printed."""
    command = [sys.executable, "-m", "storebench", "place", "up", "--json"]
    command += ["--first-byte-ms", str(first_byte_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    lines: list[str] = []
    try:
        assert process.stdout is not None
        while (line := process.stdout.readline()) and line != "}\n":
            lines.append(line)
        yield process, json.loads("".join([*lines, "}"]))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def place() -> Iterator[str]:
    if missing():
        pytest.skip(missing())
    with place_up(5) as (_, printed):
        assert printed["emulated_first_byte_ms"] == 5
        assert 5 <= printed["first_byte_ms"] < 200
        yield printed["place"]


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]


def test_a_run_serves_the_same_samples_as_from_the_disk(place: str, cli: Cli, tmp_path: Path) -> None:
    secret = {"AWS_ACCESS_KEY_ID": "another-key", "AWS_SECRET_ACCESS_KEY": "another-secret"}
    done = cli(
        "run", "png", "png:objects", *MNIST, "--place", f"copy:{place},{place}", "--out", "run", env=secret
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^Copying .* (pays from epoch \d+ on|does not pay), beside", done.stdout, re.MULTILINE)
    assert re.search(r"SeaweedFS [\d.]+ on this machine \(emulated: a first byte of 5 ms\)", done.stdout)
    copied, remote = sorted(records(tmp_path / "run"), key=lambda record: str(record["cell"]["place"]))
    assert remote["coverage"]["unique"] == remote["requests"]["count"] == 300
    assert remote["requests"]["received_bytes"] == remote["payload_bytes"]
    assert remote["requests"]["p50_ms"] >= 5
    assert remote["place"]["emulated_first_byte_ms"] == 5
    assert remote["digests"]["order"] == copied["digests"]["order"]
    assert copied["place"]["copy_s"] > 0
    assert copied["requests"] is None
    assert cli("validate", "run").returncode == 0
    kept = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert not any(word.encode() in kept for word in secret.values())


@pytest.mark.parametrize(("container", "codec", "reader"), READERS)
def test_any_order_is_served_right(
    container: str, codec: str, reader: str, place: str, tmp_path: Path
) -> None:
    small, url = stored(container, codec, reader, place, tmp_path)
    rng = np.random.default_rng(0)
    options = {"inflight": "3", "window": "7"} if small.format.traits(reader).remote else {}
    with small.format.reader(small.path, small.manifest, reader, options, url) as opened:
        planned = [rng.permutation(len(small.labels)).astype(np.int64)[:20] for _ in range(3)]
        opened.plan(planned)
        departs = np.array([3, 3, 60, 0], np.int64)
        for indices in (*planned[:2], departs, planned[2]):
            pixels, labels = opened[indices]
            np.testing.assert_array_equal(pixels, small.pixels[indices])
            np.testing.assert_array_equal(labels, small.labels[indices])


def stored(container: str, codec: str, reader: str, place: str, folder: Path) -> tuple[SmallStore, str]:
    """Return a small store and the address to which it was copied."""
    from storebench.places.copying import copy_there

    try:
        store_format = get_format(container)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    if reader == "boto3":
        pytest.importorskip(reader)
    path = folder / folder.name / f"{container}+{codec}"  # another store for each test
    path.mkdir(parents=True)
    small, url = build_small_store(store_format, codec, path), place.removeprefix("s3:")
    copy_there(path, url)
    return small, url


@pytest.mark.parametrize("container", STREAMS)
def test_shards_come_in_sequence(container: str, place: str, tmp_path: Path) -> None:
    from storebench.formats.peers.stream import StreamOptions

    (small, url), seed = stored(container, "png", "stream", place, tmp_path), (3, 1)
    shards = [path for path in small.path.iterdir() if path.suffix in {".tar", ".tfrecord"}]
    with small.format.reader(small.path, small.manifest, "stream", {"inflight": "2"}, url) as opened:
        order = opened.native_order(small.path, small.manifest, StreamOptions(), seed)
        opened.plan(np.array_split(order, 5), seed)
        for indices in np.array_split(order, 5):
            np.testing.assert_array_equal(opened[indices][0], small.pixels[indices])
        requests = opened.requests()
        assert requests is not None
        assert sorted(requests[:, 2]) == sorted(path.stat().st_size for path in shards)
        starts, ends = np.sort(requests[:, 0]), np.sort(requests[:, 1])
        assert (starts[2:] >= ends[:-2]).all()  # never three under way
        assert (starts[1:] < ends[:-1]).any()
        np.testing.assert_array_equal(opened[[7, 0]][0], small.pixels[[7, 0]])
        assert opened.notes()["batches outside of the native order"] == "1"


@NEEDS_SERVER
@needs("pyarrow")
def test_a_librarys_own_client_is_counted_at_the_server(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", "png:objects", "parquet+png", *MNIST, "--place", "s3:here", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "not seen here" in done.stdout
    for record in records(tmp_path / "run"):
        requests, served = record["requests"], record["served"]
        if record["cell"]["backend"] == "parquet+png":
            assert requests is None
            assert served["count"] >= 5
            assert served["sent_bytes"] > 1.5 * 300 * 100  # row groups of a hundred for each batch
        else:
            assert (served["count"], served["sent_bytes"]) == (requests["count"], requests["received_bytes"])
    assert cli("validate", "run").returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lmdb", "--place", "s3:http://127.0.0.1:1/b"), "cannot be read from s3:http"),
        (("png:objects",), "asks an object store"),
        (("png:objects", "--place", "s3:http://key:secret@127.0.0.1:1/b"), "no credentials"),
        (("png:objects", "--place", "s3:nowhere"), "place is"),
        (("lmdb", "--place", "/no/such/share"), "no such folder"),
        (("png:objects", "--place", "s3:here?round-trip-ms=2"), "emulates"),
        (("png:objects", "--place", "s3:here?first-byte-ms=10001"), "at most 10,000"),
        (("png:objects", "--place", "nfs:here"), "name its folder"),
        (("png", "--place", "/dev/shm", "--cache", "cold"), "no cell can be cold at /dev/shm: tmpfs"),
        (("png:objects", "--place", "s3:here?first-byte-ms=2,mb-s=2"), "joined by '&'"),
        (("png:objects", "--place", "s3:here", "--cache", "cold"), "no page cache"),
        pytest.param(
            ("png:objects", "--place", "s3:http://127.0.0.1:1/b"), "127.0.0.1:1", marks=needs("obstore")
        ),
    ],
)
def test_what_cannot_be_is_one_line(words: tuple[str, ...], said: str, cli: Cli, tmp_path: Path) -> None:
    done = cli("run", *words, *MNIST, "--out", str(tmp_path / "run"))
    assert done.returncode in (2, 5), done.stderr
    assert said in done.stderr.splitlines()[-1]
    assert "secret" not in done.stdout
    assert not (tmp_path / "run" / "records.jsonl").exists()


@pytest.mark.parametrize(
    ("container", "codec", "reader", "part", "damage"),
    [
        ("files", "raw", "objects", ".raw", "lost"),
        ("files", "raw", "objects", ".raw", "shorter"),
        ("webdataset", "png", "ranges", ".tar", "shorter"),
        ("webdataset", "png", "stream", ".tar", "shorter"),
        ("parquet", "raw", "groups", ".parquet", "shorter"),
        ("zarr", "raw", "tensorstore", "image/c/0/0/0/0", "lost"),  # a missing one reads as zeros
        ("lance", "png", "take", ".lance", "lost"),
    ],
)
def test_what_the_place_lost_or_changed_is_found(
    container: str, codec: str, reader: str, part: str, damage: str, place: str, tmp_path: Path
) -> None:
    from storebench.places.copying import store_key
    from storebench.places.objects import ObjectStore

    small, url = stored(container, codec, reader, place, tmp_path)
    bucket = ObjectStore(url)
    key = next(key for key in sorted(bucket.sizes(store_key(small.path))) if key.endswith(part))
    content = bucket.get(key)
    bucket.delete(key)
    if damage == "shorter":
        bucket.put(key, content[:200])
    with (
        pytest.raises(StorebenchError) as raised,
        small.format.reader(small.path, small.manifest, reader, {}, url) as opened,
    ):
        opened[range(len(small.labels))]
    assert key in str(raised.value) or "sample" in str(raised.value)


@NEEDS_SERVER
def test_a_server_that_dies_is_one_line_of_every_client_and_leaves_nothing(tmp_path: Path) -> None:
    with contextlib.ExitStack() as opened, place_up(1) as (server, printed):
        readers = []
        for container, codec, reader in (*READERS, *((name, "png", "stream") for name in STREAMS)):
            with contextlib.suppress(pytest.skip.Exception):
                small, url = stored(container, codec, reader, printed["place"], tmp_path / reader)
                readers.append(
                    opened.enter_context(small.format.reader(small.path, small.manifest, reader, {}, url))
                )
        children = psutil.Process(server.pid).children(recursive=True)
        assert len(children) >= 2  # the server and the proxy before it
        server.kill()
        server.wait()

        def told(reader: Reader) -> str:
            with pytest.raises(CellFailedError, match=re.escape(url)) as raised:
                reader[range(len(reader.labels))]
            return str(raised.value)

        with ThreadPoolExecutor(len(readers)) as pool:  # each tries again for a while
            lines = list(pool.map(told, readers))
        assert not [line for line in lines if "\n" in line]
        psutil.wait_procs(children, timeout=10)
        alive = [child for child in children if child.is_running()]
        assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]


@NEEDS_SERVER
def test_a_place_whose_server_has_died_ends() -> None:
    with place_up(1) as (server, _):
        for child in psutil.Process(server.pid).children():
            child.kill()
        assert server.wait(60) == 5


def test_what_runs_put_into_a_bucket_can_be_removed_without_anything_else(
    place: str, cli: Cli, tmp_path: Path
) -> None:
    from storebench.places.copying import ABOUT
    from storebench.places.objects import ObjectStore

    bucket = ObjectStore(place.removeprefix("s3:"))
    cli("place", "clean", place)  # what other tests have put there
    run = cli(
        "run", "png:objects", "npy:ranges", *MNIST, "--place", place, "--max-steps", "1", "--out", "run"
    )
    assert run.returncode == 0, run.stderr
    put = {key for key in bucket.sizes("") if key.startswith("storebench-copies/")}
    bucket.put("mine", b"mine")
    told = re.findall(r": (\d+) objects, .*'storebench place clean", run.stderr)
    assert sum(map(int, told)) == len([key for key in put if "/probe/" not in key])
    done = cli("place", "clean", place, "--json")
    assert (done.returncode, json.loads(done.stdout)["removed"]) == (0, len(put)), done.stderr
    assert {"mine", ABOUT} <= set(bucket.sizes(""))
    assert not put & set(bucket.sizes(""))
    assert json.loads(cli("place", "clean", place, "--json").stdout)["removed"] == 0


@pytest.mark.parametrize(
    ("place", "said", "code"),
    [
        ("/tmp", "rm -r", 2),
        pytest.param("s3:http://127.0.0.1:1/b", "nothing listens", 5, marks=needs("obstore")),
    ],
)
def test_what_cannot_be_cleaned_is_one_line(place: str, said: str, code: int, cli: Cli) -> None:
    done = cli("place", "clean", place)
    assert done.returncode == code
    [line] = done.stderr.splitlines()
    assert said in line


@contextlib.contextmanager
def proxied(*options: str) -> Iterator[tuple[socket.socket, tuple[str, int]]]:
    """Run the proxy of a place, and return the socket of the server behind it, and the address of the proxy."""
    with socket.create_server(("127.0.0.1", 0)) as upstream, socket.create_server(("127.0.0.1", 0)) as front:
        command = [sys.executable, "-m", "storebench.places.first_byte", *options]
        command += [f"--upstream={upstream.getsockname()[1]}", f"--socket={front.fileno()}"]
        with subprocess.Popen(command, pass_fds=[front.fileno()]) as proxy:
            yield upstream, front.getsockname()
            proxy.kill()


def test_all_connections_share_the_bandwidth() -> None:
    size, connections, mb_s = 1_000_000, 3, 5
    with proxied(f"--mb-s={mb_s}") as (upstream, front), contextlib.ExitStack() as opened:
        pairs = []
        for _ in range(connections):
            client = opened.enter_context(socket.create_connection(front))
            pairs.append((client, opened.enter_context(upstream.accept()[0])))
        begun = time.monotonic()
        senders = [threading.Thread(target=server.sendall, args=(bytes(size),)) for _, server in pairs]
        readers = [
            threading.Thread(target=client.recv, args=(size, socket.MSG_WAITALL)) for client, _ in pairs
        ]
        for thread in (*senders, *readers):
            thread.start()
        for thread in (*senders, *readers):
            thread.join()
    assert time.monotonic() - begun >= 0.9 * connections * size / (mb_s * 1e6)


def test_the_first_byte_counts_from_the_begin_of_a_request_that_arrives_in_parts() -> None:
    first_byte_s, pause_s = 0.8, 0.6
    with proxied("--first-byte-ms=800") as (upstream, front), contextlib.ExitStack() as opened:
        client = opened.enter_context(socket.create_connection(front))
        server = opened.enter_context(upstream.accept()[0])
        begun = time.monotonic()
        client.sendall(b"a")
        time.sleep(pause_s)
        client.sendall(b"b")
        server.recv(2, socket.MSG_WAITALL)
        server.sendall(b"c")
        client.recv(1)
        took = time.monotonic() - begun
    assert first_byte_s <= took < first_byte_s + 0.8 * pause_s


def test_a_folder_is_a_place(cli: Cli, tmp_path: Path) -> None:
    there = tmp_path / "mounted"
    there.mkdir()
    done = cli("run", "lmdb", *MNIST, "--place", str(there), "--cache", "warm", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert all(" on " in record["place"]["server"] for record in records(tmp_path / "run"))
    assert Manifest.read(next(there.glob("*/lmdb+raw"))).count == 300
