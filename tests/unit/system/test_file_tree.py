"""A listing of a folder's files: complete, in order, and small."""

import os
import tracemalloc
from pathlib import Path

from storebench.system.file_tree import FileTree


def test_a_tree_lists_what_walking_the_folder_does(tmp_path: Path) -> None:
    for folder in ("b/deep", "a", "empty"):
        (tmp_path / folder).mkdir(parents=True)
    strange = os.fsdecode(b"not utf-8: \xff")
    for name in ("labels.npy", "left.out", "b/10.png", "b/9.png", "b/deep/x", "a/left.out", f"a/{strange}"):
        (tmp_path / name).touch()
    (tmp_path / "b" / "link").symlink_to("10.png")
    (tmp_path / "b" / "broken").symlink_to("nowhere")
    (tmp_path / "b" / "itself").symlink_to("itself")
    (tmp_path / "a" / "another folder").symlink_to("../b")
    tree = FileTree(tmp_path, but={"left.out"})
    found = [path for path in tmp_path.rglob("*") if path.name != "left.out" and not path.is_dir()]
    assert sorted(tree) == sorted(found)
    assert sorted(tree.links) == [tmp_path / "b" / name for name in ("broken", "itself", "link")]
    assert [tree[number] for number in range(len(tree))] == list(tree) == list(map(Path, tree.names()))
    assert tree[-1] == list(tree)[-1]
    assert tree[1:3] == list(tree)[1:3]


def test_a_file_takes_little_more_than_its_name(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / f"{number:08d}.png").touch()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tree = FileTree(tmp_path)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(tree) == 2000
    assert (after - before) / 2000 < 20
