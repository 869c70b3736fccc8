"""Tables whose rows are samples: Parquet files, and Arrow files as Hugging Face's `save_to_disk` writes them."""

import json
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storebench.datasets.base import Image
from storebench.datasets.containers.base import Container, Labels, reading_file
from storebench.datasets.containers.pixels import image_or_pixels
from storebench.datasets.names import SampleNames
from storebench.errors import CorruptDataError, UsageError

reading = partial(
    reading_file,
    what="cannot be read",
    errors=(pa.ArrowException, OSError, ArithmeticError, LookupError, ValueError, StopIteration),
)
BATCH_ROWS = 32  # rows of Parquet that are decoded at a time: enough that a call costs little for each
OPEN_FILES = 16
_ARROW = b"ARROW1"  # the first bytes of a file that is no stream
_BYTES, _PATH = "bytes", "path"  # the parts of Hugging Face's image that hold the file, and its name


class Rows(Container):
    """Rows of tables. A piece is what can be read from its begin only; within one, each thread reads forward."""

    path_column = "{}"  # the column that is read for the names of images

    @abstractmethod
    def layout(self, path: Path) -> tuple[pa.Schema, list[int]]:
        """Return the columns of a file, and the number of rows of each of its pieces."""

    @abstractmethod
    def batches(self, path: Path, number: int, column: str) -> Iterator[pa.RecordBatch]:
        """Yield a column of piece `number` of a file in batches."""

    def scan(self) -> None:
        self._pieces: list[tuple[Path, int, int]] = []  # file, number within it, rows of all files before
        self._ends = array("q")  # rows of all pieces up to and with each
        self.keys = SampleNames()
        labels, expected = Labels(self.files[0], self.asked), None
        for path in self.files:
            before = len(labels)
            with reading(path):
                schema, pieces = self.layout(path)
                columns = self._columns(schema, path)
                expected = expected or columns
                if columns != expected:
                    what = f"other columns than {self.files[0].name} has"
                    raise CorruptDataError(what, where=path, hint="Name files with the same columns.")
                self.image, self.label = (*columns, "")[:2]
                for number, rows in enumerate(pieces):
                    if not self.label:
                        labels.skip(rows)
                    for batch in self.batches(path, number, self.label) if self.label else ():
                        for value in batch.column(0).to_pylist():
                            labels.add(value)
                    if _PATH in _parts(columns[self.image]):
                        for batch in self.batches(path, number, self.path_column.format(self.image)):
                            for name in batch.column(0).field(_PATH).to_pylist():
                                if name and isinstance(name, str):
                                    self.keys.append(name)
                    self._pieces.append((path, number, before))
                    self._ends.append(len(labels))
        names: tuple[str, ...] = ()
        # Hugging Face keeps the names of classes in the metadata of a table.
        with suppress(AttributeError, LookupError, RecursionError, TypeError, ValueError):
            about = json.loads(schema.metadata[b"huggingface"])
            names = tuple(map(str, about["info"]["features"][self.label]["names"]))
        self.classes = labels.classes(names)

    def name(self, index: int) -> str:
        return self.keys[index] if len(self.keys) == self._ends[-1] else super().name(index)

    def _columns(self, schema: pa.Schema, path: Path) -> dict[str, pa.DataType]:
        """Return the types of the columns of images and, if there is one, of labels."""
        holding = [field.name for field in schema if _holds_images(field.type)]
        varying = [name for name in holding if not pa.types.is_fixed_size_binary(schema.field(name).type)]
        image = self.image_field(schema.names, path, varying or holding)  # others may be digests
        if image not in holding:
            raise UsageError(
                f"the column {image} holds {schema.field(image).type}, not the bytes of image files",
                where=path,
                hint="Name another column with #IMAGE,LABEL.",
            )
        label = self.label_field(schema.names, path, image)
        return {name: schema.field(name).type for name in (image, label) if name}

    def read(self, index: int) -> bytes | Image:
        return self._image(self._content(index), index)

    def read_many(self, indices: Sequence[int]) -> list[bytes | Image]:
        """Read forward, so that no piece is begun twice."""
        images = {index: self.read(index) for index in sorted(indices)}
        return [images[index] for index in indices]

    @abstractmethod
    def _content(self, index: int) -> Any:
        """Return the value of a row for its image, of any type."""

    def files_of(self, indices: Iterable[int]) -> list[Path]:
        return list(dict.fromkeys(self._place(index)[0] for index in sorted(indices)))

    def _place(self, index: int) -> tuple[Path, int, int]:
        """Return file, number of the piece within it, and row of the piece."""
        piece = bisect_right(self._ends, index)
        path, number, _ = self._pieces[piece]
        return path, number, index - (self._ends[piece - 1] if piece else 0)

    def _image(self, content: Any, index: int) -> bytes | Image:
        if content is None:
            raise CorruptDataError(
                "no bytes of an image",
                where=self.locate(index),
                hint="Write the images into the table, not their paths.",
            )
        return image_or_pixels(content, self.locate(index))

    def locate(self, index: int) -> str:
        path, _, before = self._pieces[bisect_right(self._ends, index)]
        return f"{path}: row {index - before:,}"


class ParquetRows(Rows):
    path_column = f"{{}}.{_PATH}"  # without the images

    def _content(self, index: int) -> Any:
        """Return the image of a row; each thread goes on from the batch that it has read last."""
        path, number, row = self._place(index)
        last = self.last
        with reading(path):
            if last.key != (path, number) or row < last.begin:
                following = self.batches(path, number, self.image)
                last.key, last.begin, last.following = (path, number), 0, following
                last.batch = next(following)
            while row >= last.begin + len(last.batch):
                last.batch, last.begin = next(last.following), last.begin + len(last.batch)
            return content_of(last.batch.column(0)[row - last.begin])

    def _file(self, path: Path) -> pq.ParquetFile:
        """Return an open file; each thread keeps a few."""
        files = self.last.__dict__.setdefault("files", {})
        if path not in files:
            if len(files) == OPEN_FILES:
                files.pop(next(iter(files))).close()
            files[path] = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
        file: pq.ParquetFile = files[path]
        return file

    def layout(self, path: Path) -> tuple[pa.Schema, list[int]]:
        with pq.ParquetFile(path) as file:
            groups = map(file.metadata.row_group, range(file.num_row_groups))
            return file.schema_arrow, [group.num_rows for group in groups]

    def batches(self, path: Path, number: int, column: str) -> Iterator[pa.RecordBatch]:
        file = self._file(path)
        yield from file.iter_batches(BATCH_ROWS, [number], columns=[column], use_threads=False)


class ArrowRows(Rows):
    def _open(self) -> dict[Path, list[pa.RecordBatch]]:
        return {path: list(record_batches(path)) for path in self.files}

    def layout(self, path: Path) -> tuple[pa.Schema, list[int]]:
        with pa.memory_map(str(path)) as source:
            for batch in self.handle[path]:
                batch.validate(full=True)  # the library itself trusts the offsets in a file
            return _opened(source).schema, list(map(len, self.handle[path]))

    def batches(self, path: Path, number: int, column: str) -> Iterator[pa.RecordBatch]:
        yield self.handle[path][number].select([column])

    def _content(self, index: int) -> Any:
        path, number, row = self._place(index)
        with reading(path):
            return content_of(self.handle[path][number].column(self.image)[row])


def record_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an Arrow file, whose values stay in the mapped file."""
    with pa.memory_map(str(path)) as source:
        reader = _opened(source)
        if isinstance(reader, pa.RecordBatchFileReader):
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            yield from reader
            while source.tell() < source.size():  # another stream behind the end of this one
                yield from pa.ipc.open_stream(source)


def _opened(source: pa.NativeFile) -> pa.RecordBatchStreamReader | pa.RecordBatchFileReader:
    is_file = source.read(len(_ARROW)) == _ARROW
    source.seek(0)
    return pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)


def content_of(scalar: Any) -> Any:
    """Return the bytes of an image; None if a table has none."""
    value = scalar.as_py()
    return value[_BYTES] if isinstance(value, dict) else value


def _parts(kind: pa.DataType) -> list[str]:
    return [field.name for field in kind] if pa.types.is_struct(kind) else []


def _holds_images(kind: pa.DataType) -> bool:
    """Whether the values of a type are bytes, however they are kept."""
    types = pa.types
    if types.is_struct(kind):
        return kind.get_field_index(_BYTES) >= 0 and _holds_images(kind.field(_BYTES).type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _holds_images(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_images(kind.storage_type)
    tests = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return any(test(kind) for test in tests)
