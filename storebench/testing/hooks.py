"""The harness's requests to a format besides samples, as tests: a part of the contract of a storage format."""

import numpy as np

from storebench.formats.base import Reader
from storebench.testing.stores import COUNT, SmallStore, read_pixels


class HooksContract:
    """The tests of the hooks for verification, the page cache and error messages; inherited by `FormatContract`."""

    def test_a_whole_store_has_a_sound_structure(self, small: SmallStore) -> None:
        """`check_structure` accepts a store that the writer wrote."""
        small.format.check_structure(small.path)

    def test_every_sample_is_located_in_its_store(self, small: SmallStore) -> None:
        """`locate` names a file or folder that exists, at least the store's own folder."""
        for index in (0, COUNT // 2, COUNT - 1):
            path = small.format.locate(small.path, small.manifest, index)
            assert path.exists()
            assert path == small.path or small.path in path.parents

    def test_indexes_are_kept_outside_the_store(self, small: SmallStore, reader: str) -> None:
        """`index_files` exist once a reader was open, and do not belong to the store."""
        with small.open(reader) as opened:
            files = type(opened).index_files(small.path)
            assert all(path.is_file() for path in files)
            assert not set(files) & set(small.format.data_files(small.path))

    def test_a_reader_that_reads_ahead_says_how_far(self, small: SmallStore, opened: Reader) -> None:
        """`ahead_bytes` counts the bytes read beyond the batch in progress; without a plan nothing is read ahead."""
        ahead_bytes = type(opened).ahead_bytes(opened.options, small.manifest)
        assert ahead_bytes >= 0
        assert ahead_bytes == 0 or opened.looks_ahead()

    def test_every_option_accepts_its_default(self, small: SmallStore, reader: str) -> None:
        """Written out, the defaults have the same meaning as a backend without options."""
        rows = small.format.readers()[reader].reader.options_type.rows()
        options = {name: row.text(row.default) for name, row in rows.items()}
        with small.format.reader(small.path, small.manifest, reader, options) as opened:
            assert opened.options == type(opened).options_type()
            np.testing.assert_array_equal(read_pixels(opened, [3]), small.pixels[[3]])
        assert all(row.meaning and row.allowed for row in rows.values())

    def test_the_auditor_reads_every_sample(self, small: SmallStore) -> None:
        """Verification goes through it."""
        with small.format.auditor(small.path, small.manifest) as auditor:
            np.testing.assert_array_equal(read_pixels(auditor, range(COUNT)), small.pixels)
            np.testing.assert_array_equal(auditor.labels, small.labels)
