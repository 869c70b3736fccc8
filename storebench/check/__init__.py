"""Compare a baseline with a contender: a verdict per cell, and one exit code.

The parts, in the order in which a check uses them: `policy` (thresholds), `sides`
(reads a run's folder, pytest-benchmark files or a committed baseline), `judge` (a
verdict per cell), `confirm` (a second run of the suspects), `outcome` (the exit
code), `render` (text, Markdown, GitHub, JUnit, JSON) and `baseline` (``--update``).
`against` runs another git revision beside the working tree.
"""
