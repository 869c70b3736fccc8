"""Stores on real servers, SeaweedFS and NFS-Ganesha on loopback, started by the command line as a user starts them."""

import contextlib
import importlib.util
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from storebench.errors import CellFailedError, MissingDependencyError, StorebenchError
from storebench.formats.registry import get_format
from storebench.record.manifest import Manifest
from storebench.settings.words import MOUNTED
from storebench.system.scratch import sweep
from storebench.testing.stores import SmallStore, build_small_store
from tests.support.harness_tools import wait_for
from tests.support.servers import missing


def needs(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"needs {library}")


def available(*kinds: str) -> list[Any]:
    reasons = {kind: missing(kind) for kind in kinds}
    return [
        pytest.param(kind, marks=pytest.mark.skipif(bool(why), reason=why)) for kind, why in reasons.items()
    ]


KINDS, MOUNTS = available("s3", "nfs"), available("ssh", "weed")
WAIT = {"s3": "--first-byte-ms", "nfs": "--round-trip-ms", "ssh": "--round-trip-ms"}
Cli = Callable[..., Any]
MNIST = ("--dataset", "mnist", "--synthetic", "--limit", "300", "--compute", "none")
READERS = (
    ("files", "png", "objects"),
    ("files", "png", "boto3"),
    ("npy", "raw", "ranges"),
    ("npy", "png", "ranges"),
    ("webdataset", "png", "ranges"),
    ("parquet", "raw", "groups"),
    ("parquet", "png", "groups"),
    ("lance", "png", "take"),
    ("zarr", "raw", "zarr"),
    ("zarr", "png", "zarr"),
    ("zarr", "png", "tensorstore"),
)
STREAMS = ("webdataset", "tfrecord")


@contextlib.contextmanager
def place_up(kind: str, wait_ms: int) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run `storebench place up`, and return its process and what it printed."""
    command = [sys.executable, "-m", "storebench", "place", "up", kind, "--json"]
    command += [WAIT[kind], str(wait_ms)] if wait_ms else []
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
    assert f" {printed_place(lines)} " not in Path("/proc/self/mounts").read_text()


def printed_place(lines: list[str]) -> str:
    return str(json.loads("".join([*lines, "}"]))["place"])


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    with place_up(request.param, 5) as (_, printed):
        assert printed[f"emulated_{WAIT[request.param][2:].replace('-', '_')}"] == 5
        assert 5 <= printed["first_byte_ms"] < 200
        yield printed["place"]


def address(place: str) -> str:
    return place.removeprefix("s3:") if place.startswith("s3:") else place.replace(":", "://", 1)


def records(run: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(run, "records.jsonl").read_text().splitlines()]


@pytest.mark.skipif(bool(missing("s3")), reason=missing("s3") or "-")
def test_credentials_of_another_store_do_not_matter_and_are_not_kept(cli: Cli, tmp_path: Path) -> None:
    secret = {"AWS_ACCESS_KEY_ID": "another-key", "AWS_SECRET_ACCESS_KEY": "another-secret"}
    done = cli("run", "png:objects", *MNIST, "--place", "s3:here", "--out", "run", env=secret)
    assert done.returncode == 0, done.stderr
    kept = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert not any(word.encode() in kept for word in secret.values())


def test_a_run_serves_the_same_samples_as_from_the_disk(place: str, cli: Cli, tmp_path: Path) -> None:
    run, same = str(tmp_path / "run"), str(tmp_path / "same")
    done = cli(
        "run",
        "png:objects?inflight=4",
        "npy:ranges",
        *MNIST,
        "--workers",
        "0,2",
        "--place",
        place,
        "--out",
        run,
    )
    assert done.returncode == 0, done.stderr
    both = cli("run", "png", "lmdb", "png:objects", *MNIST, "--place", f"copy:{place},{place}", "--out", same)
    assert both.returncode == 0, both.stderr
    assert (
        len(
            re.findall(
                r"^Copying .* (?:pays from epoch \d+ on|does not pay), beside", both.stdout, re.MULTILINE
            )
        )
        == 2
    )
    remote = records(run)
    copied = [record for record in records(same) if record["cell"]["place"].startswith("copy:")]
    assert (len(records(same)), len(copied)) == (3, 2)
    assert len(remote) == 4
    for record in remote:
        assert record["coverage"]["unique"] == record["requests"]["count"] == 300
        assert record["requests"]["received_bytes"] == record["payload_bytes"]
        assert record["requests"]["p50_ms"] >= 5
        assert 5 in record["place"].values()
    assert {record["digests"]["order"] for record in (*remote, *copied)} == {copied[0]["digests"]["order"]}
    assert all(record["place"]["copy_s"] > 0 and record["requests"] is None for record in copied)
    assert cli("validate", run).returncode == cli("validate", same).returncode == 0
    assert re.search(
        r"(SeaweedFS|NFS-Ganesha) [\d.]+ on this machine \(emulated: a (first byte|round trip) of 5 ms\)",
        done.stdout,
    )


@pytest.mark.parametrize(("container", "codec", "reader"), READERS)
def test_any_order_is_served_right(
    container: str, codec: str, reader: str, place: str, tmp_path: Path
) -> None:
    from storebench.places.copying import about, copy_there

    small, url = stored(container, codec, reader, place, tmp_path), address(place)
    _, direct = about(url)
    copy_there(small.path, direct)
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


def stored(container: str, codec: str, reader: str, place: str, folder: Path) -> SmallStore:
    try:
        store_format = get_format(container)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    if place.partition(":")[0] not in store_format.traits(reader).servers:
        pytest.skip("its library has no client of NFS")
    if reader == "boto3":
        pytest.importorskip(reader)
    path = folder / folder.name / f"{container}+{codec}"  # another store for each test: servers keep handles
    path.mkdir(parents=True)
    return build_small_store(store_format, codec, path)


@pytest.mark.parametrize("container", STREAMS)
def test_shards_come_in_sequence(container: str, place: str, tmp_path: Path) -> None:
    from storebench.formats.peers.stream import StreamOptions
    from storebench.places.copying import about, copy_there

    small, url, seed = stored(container, "png", "stream", place, tmp_path), address(place), (3, 1)
    _, direct = about(url)
    copy_there(small.path, direct)
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


def test_a_librarys_own_client_is_counted_at_the_server(cli: Cli, tmp_path: Path) -> None:
    if reason := missing("s3"):
        pytest.skip(reason)
    pytest.importorskip("pyarrow")
    pytest.importorskip("webdataset")
    backends = ("png:objects", "webdataset+png", "parquet+png")
    done = cli("run", *backends, *MNIST, "--workers", "1", "--place", "s3:here", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "not seen here" in done.stdout
    told = [(r["cell"]["backend"], r["requests"], r["served"]) for r in records(tmp_path / "run")]
    assert len(told) == 3
    for backend, requests, served in told:
        if backend == "parquet+png":
            assert requests is None
            assert served["count"] >= 5
            assert served["sent_bytes"] > 1.5 * 300 * 100  # row groups of a hundred for each batch
        else:
            assert (served["count"], served["sent_bytes"]) == (requests["count"], requests["received_bytes"])
            assert requests["count"] == (300 if backend == "png:objects" else 8)
    assert cli("validate", "run").returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lmdb", "--place", "s3:http://127.0.0.1:1/b"), "cannot be read from s3:http"),
        (("png:objects",), "asks a server"),
        (("png:objects", "--place", "s3:http://key:secret@127.0.0.1:1/b"), "no credentials"),
        (("png:objects", "--place", "s3:ftp://127.0.0.1/b"), "an address"),
        (("png:objects", "--place", "s3:nowhere"), "place is"),
        (("lmdb", "--place", "/no/such/share"), "no such folder"),
        (("png:objects", "--place", "s3:here?first-byte-ms=-2"), "emulates"),
        (("png:objects", "--place", "nfs:here?first-byte-ms=2"), "emulates"),
        (("png:objects", "--place", "s3:here?first-byte-ms=10001"), "at most 10,000"),
        (("png", "--place", "weed:here?mb-s=2"), "emulates nothing"),
        (("png", "--place", "ssh:host/folder"), "place is"),
        (("png:objects", "--place", "ssh:here"), "asks a server"),
        (("png", "--place", "/dev/shm", "--cache", "cold"), "no cell can be cold here: tmpfs"),
        (("png:objects", "--place", "nfs:host"), "place is"),
        (("png:objects", "--place", "s3:here?first-byte-ms=2,mb-s=2"), "joined by '&'"),
        (("png:objects", "--place", "s3:here", "--cache", "cold"), "no page cache"),
        pytest.param(("parquet", "--place", "nfs:host/x"), "from nfs:host/x", marks=needs("pyarrow")),
        pytest.param(
            ("png:objects", "--place", "s3:http://127.0.0.1:1/b"),
            "127.0.0.1:1",
            marks=needs("obstore"),
        ),
    ],
)
def test_what_cannot_be_is_one_line(words: tuple[str, ...], said: str, cli: Cli, tmp_path: Path) -> None:
    done = cli("run", *words, *MNIST, "--out", str(tmp_path / "run"))
    assert done.returncode in (2, 5), done.stderr
    assert said in done.stderr.splitlines()[-1]
    assert "secret" not in done.stdout
    assert not (tmp_path / "run" / "records.jsonl").exists()


@pytest.mark.parametrize("damage", ["lost", "shorter"])
@pytest.mark.parametrize(
    ("container", "codec", "reader", "part"),
    [
        ("files", "png", "objects", ".png"),
        ("files", "raw", "objects", ".raw"),
        ("webdataset", "png", "ranges", ".tar"),
        ("webdataset", "png", "stream", ".tar"),
        ("parquet", "raw", "groups", ".parquet"),
        ("zarr", "raw", "tensorstore", "image/c/0/0/0/0"),  # a missing one reads as zeros
        ("lance", "png", "take", ".lance"),
    ],
)
def test_what_the_place_lost_or_changed_is_found(
    container: str, codec: str, reader: str, part: str, damage: str, place: str, tmp_path: Path
) -> None:
    from storebench.places.clients import storage_of
    from storebench.places.copying import about, copy_there, store_key

    small, url = stored(container, codec, reader, place, tmp_path), address(place)
    _, direct = about(url)
    store = storage_of(direct)
    copy_there(small.path, direct)
    key = next(key for key in sorted(store.sizes(store_key(small.path))) if key.endswith(part))
    content = store.get(key)
    store.delete(key)
    if damage == "shorter":
        store.put(key, content[:200])
    with (
        pytest.raises(StorebenchError) as raised,
        small.format.reader(small.path, small.manifest, reader, {}, url) as opened,
    ):
        opened[range(len(small.labels))]
    assert key in str(raised.value) or "sample" in str(raised.value)


def test_a_server_that_dies_is_one_line_of_every_client(tmp_path: Path) -> None:
    from storebench.places.copying import copy_there

    if reason := missing("s3"):
        pytest.skip(reason)
    with contextlib.ExitStack() as opened, place_up("s3", 1) as (server, printed):
        readers, url = [], address(printed["place"])
        for container, codec, reader in (*READERS, *((name, "png", "stream") for name in STREAMS)):
            with contextlib.suppress(MissingDependencyError):
                path = tmp_path / reader / f"{container}+{codec}"
                path.mkdir(parents=True)
                small = build_small_store(get_format(container), codec, path)
                copy_there(path, url)
                one = small.format.reader(path, small.manifest, reader, {}, url)
                readers.append(opened.enter_context(one))
        server.kill()
        server.wait()
        for one in readers:
            begun = time.monotonic()
            with pytest.raises(CellFailedError, match=re.escape(url)) as raised:
                one[range(len(one.labels))]
            assert "\n" not in str(raised.value)
            assert time.monotonic() - begun < 60, type(one)


def test_a_folder_that_a_place_names_is_not_believed(tmp_path: Path) -> None:
    from storebench.places.copying import ABOUT, about, announce
    from storebench.record.schema import PlaceFacts

    place, victim = f"file://{tmp_path / 'place'}", tmp_path / "victim"
    announce(place, PlaceFacts(server="ours"))
    assert about(place) == (PlaceFacts(server="ours"), place)
    told = (tmp_path / "place" / ABOUT).read_text()
    (tmp_path / "place" / ABOUT).write_text(told.replace(place, f"file://{victim}"))
    assert about(place)[1] == place


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_dies_ends_the_run_with_one_line(kind: str, cli: Cli, tmp_path: Path) -> None:
    with place_up(kind, {"s3": 100, "nfs": 20}[kind]) as (server, printed):  # NFS asks four times per file
        words = ("run", "png:objects?inflight=1", *MNIST, "--place", printed["place"], "--out")
        assert cli(*words, "first", "--max-steps", "1").returncode == 0  # copies the store
        command = [sys.executable, "-m", "storebench", *words, "run"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as run:
            assert run.stderr is not None
            wait_for(lambda: any((tmp_path / "run").glob("steps/.unfinished-*")), 60)
            time.sleep(5)  # its epoch takes half a minute
            server.kill()
            errors = run.stderr.read()
    assert run.returncode == 5, errors
    assert re.search("did not deliver|no connection", errors.splitlines()[-1])
    [record] = records(tmp_path / "run")
    assert (record["status"], record["samples"]) == ("failed", 0)


@pytest.mark.parametrize("kind", [*KINDS, *MOUNTS])
def test_nothing_is_left_of_a_server_that_was_killed(kind: str) -> None:
    with place_up(kind, int(kind in WAIT)) as (server, printed):
        children = psutil.Process(server.pid).children(recursive=True)
        assert len(children) >= 2  # the server, and the proxy or the mount before it
        server.kill()
        server.wait()
        psutil.wait_procs(children, timeout=10)
        assert not [
            child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE
        ]
        if kind in MOUNTED and shutil.which("fusermount3") is None:
            sweep()  # SeaweedFS cannot unmount without it, but the next start does
        wait_for(lambda: printed["place"] not in Path("/proc/self/mounts").read_text(), 30)


@pytest.mark.skipif(bool(missing("s3")), reason=missing("s3") or "-")
def test_what_runs_put_into_a_bucket_is_said_and_can_be_removed_without_anything_else(cli: Cli) -> None:
    from storebench.places.clients import storage_of
    from storebench.places.copying import ABOUT

    with place_up("s3", 0) as (_, printed):
        place = printed["place"]
        bucket = storage_of(address(place))
        cli("place", "clean", place)  # what was put there when the server started
        run = cli("run", "png:objects", "npy:ranges", *MNIST, "--place", place, "--out", "first")
        assert run.returncode == 0, run.stderr
        put = {key for key in bucket.sizes("") if key != ABOUT}
        [folder] = {key.partition("/")[0] for key in put if not key.startswith(".")}
        mine = {f"{folder}/mine", f"{folder}/files+png/mine", ".storebench-probe/mine", "mine"}
        for key in mine:
            bucket.put(key, b"mine")
        told = re.findall(r": (\d+) objects, .*'storebench place clean", run.stderr)
        assert sum(map(int, told)) == len([key for key in put if key.startswith(folder)])
        key = next(key for key in put if key.endswith(".png"))
        bucket.delete(key)  # as if a copy had been interrupted
        bucket.delete(f"{folder}/files+png/manifest.json")
        done = cli("place", "clean", place, "--json")
        assert (done.returncode, json.loads(done.stdout)["removed"]) == (0, len(put) - 2), done.stderr
        assert set(bucket.sizes("")) == {*mine, ABOUT}
        assert json.loads(cli("place", "clean", place, "--json").stdout)["removed"] == 0


@pytest.mark.parametrize(
    ("place", "said", "code"),
    [
        ("/tmp", "rm -r", 2),
        ("s3:here", "has an address", 2),
        ("s3:nowhere", "place is", 2),
        pytest.param("s3:http://127.0.0.1:1/b", "nothing listens", 5, marks=needs("obstore")),
    ],
)
def test_what_cannot_be_cleaned_is_one_line(place: str, said: str, code: int, cli: Cli) -> None:
    done = cli("place", "clean", place)
    assert done.returncode == code
    [line] = done.stderr.splitlines()
    assert said in line


@pytest.mark.parametrize("kind", [*KINDS, *MOUNTS])
def test_a_place_whose_server_has_died_ends(kind: str) -> None:
    with place_up(kind, 0) as (server, _):
        for child in psutil.Process(server.pid).children():
            child.kill()
        assert server.wait(60) == 5


FIVE = ("png", "hdf5", "memory", "leveldb", "lmdb", "lmdb:direct")


@pytest.mark.parametrize("kind", MOUNTS)
def test_all_formats_are_read_from_a_mount_as_from_the_disk(kind: str, cli: Cli, tmp_path: Path) -> None:
    run, place = str(tmp_path / "run"), f"{kind}:here"
    done = cli("run", *FIVE, *MNIST, "--place", f"{place},local", "--out", run)
    assert done.returncode == 0, done.stderr
    assert len(records(run)) == 2 * len(FIVE)
    served = {
        record["cell"]["place"]: record["environment"]["match"]["filesystem"] for record in records(run)
    }
    assert served[place].startswith("fuse.")
    assert served["local"] != served[place]
    assert len({record["digests"]["order"] for record in records(run)}) == 1
    assert {record["coverage"]["unique"] for record in records(run)} == {300}
    assert cli("validate", run).returncode == 0
    states = cli(
        "run", "png", *MNIST, "--place", f"{place},copy:{place}", "--cache", "cold,warm", "--out", "two"
    )
    assert states.returncode == 0, states.stderr


@pytest.mark.skipif(bool(missing("ssh")), reason=missing("ssh"))
@pytest.mark.parametrize("keeps", [True, False])
def test_cache_states_are_tried_before_they_are_believed(keeps: bool, cli: Cli, tmp_path: Path) -> None:
    with place_up("ssh", 1) as (server, printed):
        [sshfs] = [
            child.cmdline()
            for child in psutil.Process(server.pid).children()
            if "auto_cache" in child.cmdline()[-1]
        ]
        place = Path(printed["place"]) if keeps else tmp_path / "mounted"
        if not keeps:
            place.mkdir()
            options = sshfs[-1].replace(",auto_cache", "")
            subprocess.run([sshfs[0], sshfs[2], place, *sshfs[4:-1], options], check=True)
        run = str(tmp_path / "run")
        done = cli("run", "png", *MNIST, "--place", str(place), "--cache", "warm", "--out", run)
        if keeps:
            assert done.returncode == 0, done.stderr
            [record] = records(run)
            assert record["place"]["emulated_round_trip_ms"] == 1
            assert record["cache"]["verdict"] == "verified"
        else:
            subprocess.run(["fusermount3", "-u", place], check=True)
            assert done.returncode == 2
            assert "no cell can be warm here: fuse.sshfs" in done.stderr.splitlines()[-1]


@contextlib.contextmanager
def proxied(**emulated: float) -> Iterator[tuple[socket.socket, tuple[str, int]]]:
    """Run the proxy of a place, and return the socket of the server behind it, and the address of the proxy."""
    with socket.create_server(("127.0.0.1", 0)) as upstream, socket.create_server(("127.0.0.1", 0)) as front:
        command = [sys.executable, "-m", "storebench.places.first_byte"]
        command += [f"--upstream={upstream.getsockname()[1]}", f"--socket={front.fileno()}"]
        command += [f"--{name.replace('_', '-')}={value}" for name, value in emulated.items()]
        with subprocess.Popen(command, pass_fds=[front.fileno()]) as proxy:
            yield upstream, front.getsockname()
            proxy.kill()


def test_every_answer_under_way_takes_the_round_trip() -> None:
    """Requests follow each other before the first is answered, as those of sshfs do."""
    round_trip_s, between_s, count = 0.05, 0.003, 40
    with proxied(round_trip_ms=1000 * round_trip_s) as (upstream, front):
        client = socket.create_connection(front)
        server, _ = upstream.accept()
        asked: list[float] = []

        def ask() -> None:
            for number in range(count):
                asked.append(time.monotonic())
                client.sendall(bytes([number]))
                time.sleep(between_s)

        def answer() -> None:
            for _ in range(count):
                server.sendall(server.recv(1))

        threads = [threading.Thread(target=one) for one in (ask, answer)]
        for one in threads:
            one.start()
        took = [(client.recv(1), time.monotonic())[1] - asked[number] for number in range(count)]
        for one in threads:
            one.join()
        client.close()
        server.close()
    assert min(took) >= round_trip_s
    assert sorted(took)[count // 2] < 2 * round_trip_s


def test_all_connections_share_the_bandwidth() -> None:
    size, connections, mb_s = 1_000_000, 3, 5
    with proxied(mb_s=mb_s) as (upstream, front), contextlib.ExitStack() as opened:
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
    with proxied(first_byte_ms=1000 * first_byte_s) as (upstream, front), contextlib.ExitStack() as opened:
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
    there, run = tmp_path / "mounted", str(tmp_path / "run")
    there.mkdir()
    done = cli("run", "png", "lmdb", *MNIST, "--place", str(there), "--cache", "warm", "--out", run)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in there.glob("*/*") if path.is_dir()} == {"files+png", "lmdb+raw"}
    assert all(" on " in record["place"]["server"] for record in records(run))
    assert Manifest.read(next(there.glob("*/lmdb+raw"))).count == 300
