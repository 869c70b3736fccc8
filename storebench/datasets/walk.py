"""Find the image files of class folders: each folder once, within bounds; only files without an ending are opened."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePath

from storebench.datasets.images import EXTENSIONS, SUFFIXES, suffix_of
from storebench.datasets.sources import row_of, status_row, unreadable
from storebench.errors import CorruptDataError, StorebenchError
from storebench.fileio.reading import open_regular

MOST_ENTRIES = 50_000_000
"""Most files and folders in one set of class folders; ImageNet-21k has 14 million images."""

MOST_DEPTH = 32
"""Most levels of nested folders."""

OTHER_IMAGES = (".avif", ".cr2", ".dng", ".heic", ".heif", ".jp2", ".jxl", ".nef", ".svg", ".tga")
"""Endings of image files that are not read."""

SYSTEM_FOLDERS = frozenset(
    [
        "lost+found",
        "@eadir",
        "@recycle",
        "@recently-snapshot",
        "@tmp",
        "#recycle",
        "#snapshot",
        "$recycle.bin",
        "__macosx",
        "recycler",
    ]
) | {"system volume information", "network trash folder", "temporary items"}
"""Folders that file systems, network drives and desktops make by themselves, in small letters."""


def is_left_out(path: str) -> bool:
    """Return whether a part of a path is hidden, or the name of a folder that a system makes."""
    parts = (part for part in path.split("/") if part not in ("", ".", ".."))
    return any(part.startswith(".") or part.lower() in SYSTEM_FOLDERS for part in parts)


class ScanSnapshot:
    """The folders and files that a scan has looked at, each as it was before the scan looked into it."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, ...]] = {}
        self.others: set[Path] = set()
        self.endings: dict[Path, set[str]] = {}
        self.systems: set[Path] = set()

    def look(self, path: Path, status: os.stat_result | None = None) -> None:
        """Remember a folder or file, which may not exist; its first status counts."""
        name = os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps ".."
        if name not in self.rows:
            self.rows[name] = status_row(name) if status is None else row_of(status)


class ClassFolders:
    """The class folders in one folder."""

    def __init__(self, root: Path, seen: ScanSnapshot | None = None) -> None:
        self._root = root
        self._seen = seen or ScanSnapshot()
        self._entered: dict[tuple[int, int], str] = {}
        self._entries = 0
        self._enter("")

    def names(self) -> list[str]:
        """Return the names of the class folders, sorted; hidden ones are skipped."""
        return sorted(entry.name for entry in self._listed("") if self._is_folder(entry, entry.name))

    def images(self, name: str) -> Iterator[str]:
        """Yield the image files of one class, in no particular order, as paths relative to the root."""
        waiting = [name]
        while waiting:
            folder = waiting.pop()
            self._enter(folder)
            for entry in self._listed(folder):
                path = f"{folder}/{entry.name}"
                if self._is_folder(entry, path):
                    waiting.append(path)
                elif _is_named_as_image(entry):
                    yield path
                else:
                    ending = PurePath(entry.name).suffix.lower()
                    self._seen.endings.setdefault(self._root / name, set()).add(ending or "no ending")
                    if ending in OTHER_IMAGES:
                        self._seen.others.add(self._root / path)

    def loose(self) -> list[str]:
        """Return the image files that are in no class folder, sorted, as paths relative to the root."""
        return sorted(
            entry.name
            for entry in self._listed("")
            if not self._is_folder(entry, entry.name) and _is_named_as_image(entry)
        )

    def _enter(self, folder: str) -> None:
        """Refuse a folder that was entered before, or is nested too deep."""
        try:
            status = (self._root / folder).stat()
        except OSError as error:
            raise unreadable(self._root / folder, error) from error
        self._seen.look(self._root / folder, status)
        if folder.count("/") >= MOST_DEPTH:
            raise self._refused(folder, f"more than {MOST_DEPTH} folders deep", "Move its images up.")
        if not status.st_ino:  # some network file systems have no inode numbers; the other bounds apply there
            return
        before = self._entered.setdefault((status.st_dev, status.st_ino), folder)
        if before != folder:
            above = not before or folder.startswith(f"{before}/")
            problem = "a link back to a folder above it" if above else "a folder that was read already"
            raise self._refused(
                folder,
                f"{problem}, {self._root / before}, so that images would count twice",
                "Remove the link.",
            )

    def _listed(self, folder: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self._root / folder) as entries:
                for entry in entries:
                    self._entries += 1
                    if self._entries > MOST_ENTRIES:
                        raise self._refused(
                            "", f"more than {MOST_ENTRIES:,} files and folders", "Name a smaller folder."
                        )
                    if not is_left_out(entry.name):
                        yield entry
                    elif not entry.name.startswith("."):
                        self._seen.systems.add(self._root / folder / entry.name)
        except OSError as error:
            raise unreadable(self._root / folder, error) from error

    def _is_folder(self, entry: os.DirEntry[str], path: str) -> bool:
        try:
            if entry.is_dir():
                return True
            if entry.is_symlink() and not _is_named_as_image(entry):
                entry.stat()
        except OSError as error:
            if _is_named_as_image(entry):
                return False
            reason = error.strerror or str(error)
            raise self._refused(path, f"a link that leads nowhere ({reason})", "Remove the link.") from error
        return False

    def _refused(self, path: str, what: str, hint: str) -> CorruptDataError:
        return CorruptDataError(what, where=self._root / path, hint=hint)


def _is_named_as_image(entry: os.DirEntry[str]) -> bool:
    """Return whether a file's name has the ending of an image, or none while its content begins as an image does."""
    name = entry.name.lower()
    if "." in name:
        return name.endswith(EXTENSIONS)
    try:
        with open_regular(Path(entry.path)) as stream:
            return suffix_of(stream.read(16)) != SUFFIXES[0]
    except (OSError, StorebenchError):
        return False
