"""Every trick of docs/adversary.md runs in `make test`: none is thinned away or waits for `make test-full`."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "adversary.md"
FEWEST = 60
HARNESS, CHECK, HOSTILE = "tests/unit/harness", "tests/unit/check", "tests/hostile"

TRICKS: dict[str, dict[str, tuple[str, ...]]] = {
    "a reader": {
        f"{HARNESS}/test_timed_proof.py": (
            "test_a_fault_in_the_timed_pass_alone_fails_the_cell",
            "test_a_reader_that_changes_the_indices_it_was_given_is_found",
            "test_rows_that_a_batch_does_not_have_are_wrong",
            "test_a_sample_that_the_store_does_not_have_is_wrong",
            "test_a_cold_reader_that_copies_nothing_fails_on_the_command_line",
            "test_what_is_kept_is_not_in_memory_before_its_batch",
        )
    },
    "readers and loaders of a job of ranks": {
        f"{HARNESS}/test_shared_proof.py": (
            "test_a_reader_that_is_wrong_when_cold_fails_the_job",
            "test_a_fault_in_the_timed_pass_of_the_last_rank_fails_the_job",
            "test_a_rank_that_skips_a_step_of_learning_fails_the_job",
            "test_a_rank_that_runs_other_code_fails_the_job",
        ),
        f"{HARNESS}/test_share_node.py": ("test_ranks_that_get_the_pieces_of_each_other_fail_the_job",),
    },
    "the author of a format": {"tests/adversary/test_careless.py": ()},
    "a loader": {
        f"{HARNESS}/test_timed_proof.py": (
            "test_indices_come_from_the_producer_that_read_them",
            "test_a_producer_that_serves_one_sample_and_says_another_is_found",
            "test_a_loader_that_serves_yesterdays_buffer_is_found",
        ),
        f"{HARNESS}/test_epoch_coverage.py": ("test_a_loader_that_serves_a_batch_twice_fails_the_record",),
    },
    "the process of a loader": {"tests/adversary/test_loaders.py": ()},
    "the cache": {
        f"{HARNESS}/test_cold_cells.py": (
            "test_a_store_read_ahead_as_a_whole_shows_more_resident_than_requested",
            "test_the_page_index_of_a_direct_reader_is_evicted_with_the_store",
        ),
        f"{HARNESS}/test_limited_cells.py": (
            "test_a_copy_of_the_store_made_before_the_limit_is_noted",
            "test_an_image_is_copied_again_when_its_store_changes",
        ),
        f"{HARNESS}/test_private_copies.py": (
            "test_a_copy_of_the_store_made_at_opening_is_noted",
            "test_a_copy_of_what_is_served_first_is_noted",
        ),
    },
    "the code": {
        f"{HARNESS}/test_code_proof.py": (
            "test_a_package_in_the_working_directory_is_not_what_a_cell_runs",
            "test_a_cell_that_runs_code_changed_during_the_run_fails",
            "test_rounds_cannot_be_added_to_records_of_other_code",
        ),
        f"{CHECK}/test_against.py": (
            "test_a_record_of_other_code_is_refused",
            "test_a_check_fails_records_that_are_not_of_their_sides_code",
        ),
    },
    "a store": {"tests/adversary/test_stores.py": ()},
    "shared memory": {"tests/adversary/test_surroundings.py": ()},
    "a scenario": {"tests/adversary/test_scenarios.py": ()},
    "source data": {"tests/adversary/test_inputs.py": ()},
    "a record, a step table, a run": {"tests/adversary/test_records.py": ()},
    "any file that is read": {
        f"{HOSTILE}/test_fuzzed_files.py": (
            "test_a_file_of_a_run_with_other_content_is_one_line",
            "test_a_table_of_steps_with_another_column_is_one_line",
            "test_any_file_of_a_store_with_other_content_is_one_line",
            "test_a_baseline_with_other_content_is_one_line",
        )
    },
    "a baseline, a pull request": {
        "tests/adversary/test_gate.py": (),
        f"{CHECK}/test_against.py": (
            "test_slow_downs_are_seen_where_they_are",
            "test_a_slow_down_in_a_plugin_is_seen_in_its_repository",
            "test_dropped_and_shrunk_cells_are_missing_elsewhere",
        ),
    },
    "the rounds of a run": {"tests/adversary/test_rounds.py": ()},
    "the compiled kernel": {"tests/adversary/test_windows.py": ()},
}
"""Row of the page, by the beginning of its name -> test file -> tests that plant something; () for the whole file."""

HONEST = (
    "test_the_same_code_is_green",
    "test_paired_runs_of_the_same_code_are_green",
    "test_durations_beside_the_steps_may_vary",
    "test_the_honest_run_has_no_finding",
    "test_what_is_no_image_may_be_anything",
    "test_names_that_are_no_utf8_go_all_the_way",
    "test_a_run_on_names_that_are_no_utf8_is_reported_and_valid",
    "test_a_run_that_was_interrupted_has_no_gap",
    "test_a_run_that_was_extended_may_lack_its_last_rounds",
    "test_a_superseded_record_that_names_no_text_is_no_crash",
    "test_a_link_within_a_file_system_is_no_fault",
)
"""Tests in those files that plant nothing wrong: the guards must stay silent."""

COLLECTED = """
import sys
import pytest

class Listing:
    def pytest_collection_finish(self, session):
        for item in session.items:
            print("case", item.nodeid.partition("[")[0], *{mark.name for mark in item.iter_markers()})

sys.exit(pytest.main(["--collect-only", "-qq", "--full", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[Listing()]))
"""


@pytest.fixture(scope="module")
def cases() -> list[tuple[str, set[str]]]:
    """Return the test and the markers of every case in the files of `TRICKS`."""
    files = sorted({file for row in TRICKS.values() for file in row})
    done = subprocess.run(
        [sys.executable, "-c", COLLECTED, *files], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("case ")]
    return [(line[1], set(line[2:])) for line in lines]


def planted(row: dict[str, tuple[str, ...]], test: str) -> bool:
    """Return whether a test plants a trick of a row."""
    file, _, name = test.partition("::")
    return file in row and name not in HONEST and (not row[file] or name in row[file])


def least() -> dict[str, int]:
    """Return the number of faults that the page states for each of its targets."""
    table = PAGE.read_text(encoding="utf-8").partition("\n| target |")[2].partition("\n\n")[0]
    rows = [[column.strip() for column in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]
    return {row[0].removeprefix("| "): int(re.sub(r"\D", "", row[-1]) or 0) for row in rows}


def test_no_trick_is_left_to_the_long_suite(cases: list[tuple[str, set[str]]]) -> None:
    left = [
        test
        for test, marks in cases
        if marks & {"full", "thinned"} and any(planted(row, test) for row in TRICKS.values())
    ]
    assert left == []


def test_each_row_of_the_page_has_the_faults_that_it_states(cases: list[tuple[str, set[str]]]) -> None:
    counts: Counter[str] = Counter()
    for target, row in TRICKS.items():
        missing = {f"{file}::{name}" for file, names in row.items() for name in names or ("",) if name} - {
            test for test, _ in cases
        }
        assert not missing, "these tests are gone"
        counts[target] = sum(planted(row, test) for test, _ in cases)
    stated = least()
    for target, count in counts.items():
        [number] = [number for name, number in stated.items() if name.startswith(target)]
        assert 0 < number <= count, f"{target}: the page states {number}, make test plants {count}"
    assert {name for name, number in stated.items() if number} == {
        name for name in stated for target in TRICKS if name.startswith(target)
    }, "a number that nothing holds"
    assert sum(stated.values()) >= FEWEST
