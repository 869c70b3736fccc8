"""Tables whose rows are samples: Parquet files, and Arrow files as Hugging Face's `save_to_disk` writes them."""

import json
import threading
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storebench.datasets.base import Image
from storebench.datasets.containers.base import Classes, Container, Labels
from storebench.datasets.containers.pixels import image_or_pixels
from storebench.errors import CorruptDataError

BATCH_BYTES = 4 << 20  # of the rows that are decoded at a time, about
MOST_BATCH_ROWS = 1024
_BYTES = "bytes"  # the part of Hugging Face's image that holds the file


@dataclass
class Cursor:
    """The rows that one thread has read last, and the batches behind them."""

    piece: int  # number of the piece that they are in
    first: int  # number of the first row within it
    batch: pa.RecordBatch
    following: Iterator[pa.RecordBatch]


class Rows(Container):
    """Rows of tables. A piece is what can be read from its begin only; within one, each thread reads forward."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _local=threading.local())

    @abstractmethod
    def pieces(self, path: Path) -> Iterator[int]:
        """Yield the number of rows of each piece of a file."""

    @abstractmethod
    def schema(self, path: Path) -> pa.Schema: ...

    @abstractmethod
    def batches(self, path: Path, number: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of piece `number` of a file in batches."""

    def scan(self) -> None:
        self._local = threading.local()
        self._pieces: list[tuple[int, int]] = []  # number of a piece's file, and its number within that
        self._ends = array("q")  # rows of all pieces up to and with each
        self._starts = array("q")  # rows of all files before each
        labels, count, kinds = Labels(self.files[0]), 0, None
        names: tuple[str, ...] = ()
        for place, path in enumerate(self.files):
            self._starts.append(count)
            with _reading(path):
                schema = self.schema(path)
                if not place:
                    self.image, self.label = self._fields(schema, path)
                    names = _class_names(schema, self.label)
                columns = [name for name in (self.image, self.label) if name]
                own = [schema.field(name).type if name in schema.names else None for name in columns]
                if own != (kinds := kinds or own):
                    what = f"other columns than {self.files[0].name} has"
                    raise CorruptDataError(what, where=path, hint="Name files with the same columns.")
                for number, rows in enumerate(self.pieces(path)):
                    count += rows
                    self._pieces.append((place, number))
                    self._ends.append(count)
                    for batch in self.batches(path, number, [self.label]) if self.label else ():
                        for value in batch.column(0).to_pylist():
                            labels.add(value)
        self.classes = labels.classes(names) if self.label and count else Classes.none(count)

    def _fields(self, schema: pa.Schema, path: Path) -> tuple[str, str]:
        """Return the columns of images and labels; an image is bytes, or a structure with bytes."""
        if not self.asked.image:
            holding = [field.name for field in schema if _holds_images(field.type)]
            image = holding[0] if len(holding) == 1 else self.image_field(holding or schema.names, path)
        else:
            image = self.image_field(schema.names, path)
        if not _holds_images(schema.field(image).type):
            raise CorruptDataError(
                f"the column {image} holds {schema.field(image).type}, not the bytes of image files",
                where=path,
                hint="Name another column with #IMAGE,LABEL.",
            )
        return image, self.label_field(schema.names, path)

    def read(self, index: int) -> bytes | Image:
        piece = bisect_right(self._ends, index)
        row = index - (self._ends[piece - 1] if piece else 0)
        with _reading(self.files[self._pieces[piece][0]]):
            cursor = self._cursor(piece, row)
            value = cursor.batch.column(0)[row - cursor.first].as_py()
        content = value.get(_BYTES) if isinstance(value, dict) else value
        if content is None:
            raise CorruptDataError(
                "no bytes of an image",
                where=self.locate(index),
                hint="Write the images into the table, not their paths.",
            )
        return image_or_pixels(content, (0,), self.locate(index))

    def _cursor(self, piece: int, row: int) -> Cursor:
        """Return this thread's cursor, moved to a row."""
        cursor: Cursor | None = getattr(self._local, "cursor", None)
        if cursor is None or cursor.piece != piece or row < cursor.first:
            place, number = self._pieces[piece]
            following = self.batches(self.files[place], number, [self.image])
            cursor = Cursor(piece, 0, next(following), following)
        while row >= cursor.first + len(cursor.batch):
            cursor.first += len(cursor.batch)
            cursor.batch = next(cursor.following)
        self._local.cursor = cursor
        return cursor

    def locate(self, index: int) -> str:
        place, _ = self._pieces[bisect_right(self._ends, index)]
        return f"{self.files[place]}: row {index - self._starts[place]:,}"


def _class_names(schema: Any, label: str) -> tuple[str, ...]:
    """Return the names of the classes that Hugging Face keeps in the metadata of a table."""
    try:
        about = json.loads(schema.metadata[b"huggingface"])
        return tuple(map(str, about["info"]["features"][label]["names"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        return ()


class ParquetRows(Rows):
    def pieces(self, path: Path) -> Iterator[int]:
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                yield file.metadata.row_group(number).num_rows

    def schema(self, path: Path) -> pa.Schema:
        with pq.ParquetFile(path) as file:
            return file.schema_arrow

    def batches(self, path: Path, number: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            group = file.metadata.row_group(number)
            wanted = tuple(f"{column}." for column in columns)
            parts = [group.column(place) for place in range(group.num_columns)]
            nbytes = sum(
                part.total_uncompressed_size for part in parts if f"{part.path_in_schema}.".startswith(wanted)
            )
            rows = BATCH_BYTES * group.num_rows // max(1, nbytes)
            yield from file.iter_batches(
                max(1, min(rows, MOST_BATCH_ROWS)), [number], columns=list(columns), use_threads=False
            )


class ArrowRows(Rows):
    def pieces(self, path: Path) -> Iterator[int]:
        rows = 0
        for batch in record_batches(path):
            batch.validate(full=True)  # the library itself trusts the offsets in a file
            rows += len(batch)
        yield rows

    def schema(self, path: Path) -> pa.Schema:
        with pa.memory_map(str(path)) as source:
            return _opened(source).schema

    def batches(self, path: Path, number: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        for batch in record_batches(path):
            yield batch.select(list(columns))


def record_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an Arrow file, whose values stay in the mapped file."""
    with pa.memory_map(str(path)) as source:
        reader = _opened(source)
        if isinstance(reader, pa.RecordBatchFileReader):
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            yield from reader


def _opened(source: pa.NativeFile) -> pa.RecordBatchStreamReader | pa.RecordBatchFileReader:
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    return pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)


def _holds_images(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return kind.get_field_index(_BYTES) >= 0 and _holds_images(kind.field(_BYTES).type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, LookupError, ValueError, StopIteration) as error:
        first = " ".join(str(error).split())[:200] or "fewer rows than it says"
        raise CorruptDataError(
            f"cannot be read ({first})", where=path, hint="Copy the file again."
        ) from error
