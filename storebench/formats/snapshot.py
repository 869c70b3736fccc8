"""A private, temporary copy of a store whose large files are links instead of copies."""

import shutil
import tempfile
from collections.abc import Callable
from multiprocessing.util import Finalize
from pathlib import Path

from storebench.errors import from_os_error
from storebench.formats.common import damaged
from storebench.system.scratch import locked_folder, remove


class Snapshot:
    """Link and copy the files of `store` into a temporary folder."""

    def __init__(self, kind: str, store: Path, *, linked: Callable[[Path], bool]) -> None:
        try:
            self.folder, lock = locked_folder(f"snapshot-{kind}")
        except OSError as error:
            raise from_os_error(error, Path(tempfile.gettempdir())) from error
        self.links = "hard links"
        # A Finalize runs at exit too, and only in the process that made it.
        self.remove = Finalize(self, remove, args=(self.folder, lock), exitpriority=0)
        try:
            self._fill(store.resolve(), linked)
        except BaseException:
            self.remove()
            raise

    def _fill(self, store: Path, linked: Callable[[Path], bool]) -> None:
        try:
            for path in sorted(store.iterdir()):
                target = self.folder / path.name
                if not linked(path):
                    if path.is_file():
                        shutil.copyfile(path, target)
                    continue
                try:
                    target.hardlink_to(path)
                except OSError:  # another file system, or files of another user
                    target.symlink_to(path)
                    self.links = "symbolic links"
        except FileNotFoundError as error:
            raise damaged(
                "a file was removed while the store was being opened", Path(error.filename)
            ) from error
        except OSError as error:
            raise from_os_error(error, self.folder.parent) from error
