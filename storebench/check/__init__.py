"""Baseline against contender: better, worse, within noise, or why nothing can be said; and the exit code.

The parts, in the order in which a check uses them: `policy` (what is asked),
`sides` (reads a run's folder, pytest-benchmark files or a committed baseline),
`judge` (a verdict per cell), `confirm` (a second run of the suspects),
`outcome` (the exit code), `render` (text, Markdown, GitHub, JUnit, JSON) and
`baseline` (what ``--update`` writes). `against` runs another git revision
beside the working tree.
"""
