"""The files of a folder, millions of them in little memory."""

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt


class FileTree(Sequence[Path]):
    """Every file below a folder, except those with certain names; each takes the bytes of the longest name there."""

    def __init__(self, root: Path, *, but: Collection[str] = ()) -> None:
        self.links: list[Path] = []  # symbolic links among the files
        self._folders: list[tuple[str, npt.NDArray[np.bytes_]]] = []
        self._ends: list[int] = []
        left = [os.fspath(root)]
        while left:
            folder = left.pop()
            names, within = self._listed(folder, but)
            left += sorted(within, reverse=True)
            if len(names):
                self._folders.append((os.path.join(folder, ""), names))  # noqa: PTH118 - keeps the final slash
                self._ends.append(len(self) + len(names))

    def _listed(self, folder: str, but: Collection[str]) -> tuple[npt.NDArray[np.bytes_], list[str]]:
        """Return the sorted names of the files in a folder, and the folders in it; links to folders are neither."""
        names: list[bytes] = []
        within: list[str] = []
        with contextlib.suppress(PermissionError), os.scandir(folder) as entries:
            for entry in entries:
                is_link = entry.is_symlink()
                # Of a link to itself, only pathlib says that it is no folder.
                if Path(entry.path).is_dir() if is_link else entry.is_dir():
                    within += [] if is_link else [entry.path]
                elif entry.name not in but:
                    names.append(os.fsencode(entry.name))
                    self.links += [Path(entry.path)] if is_link else []
        return np.sort(np.array(names, np.bytes_)), within

    def names(self) -> Iterator[str]:
        """Yield the paths as text, because a million Path objects take seconds."""
        for folder, names in self._folders:
            for name in names:
                yield folder + os.fsdecode(name)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Path]:
        return map(Path, self.names())

    @overload
    def __getitem__(self, index: int) -> Path: ...

    @overload
    def __getitem__(self, index: slice) -> list[Path]: ...

    def __getitem__(self, index: int | slice) -> Path | list[Path]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        at = int(np.searchsorted(self._ends, number, side="right"))
        folder, names = self._folders[at]
        return Path(folder + os.fsdecode(names[number - self._ends[at]]))


Paths = Collection[Path | str]


def names_of(paths: Paths) -> Iterator[str]:
    return paths.names() if isinstance(paths, FileTree) else map(str, paths)
