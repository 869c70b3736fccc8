"""Compare two run folders: a verdict per cell, and one exit code.

`sides` reads both folders, `judge` gives each cell a verdict under a `policy`, `outcome` makes one exit code of them, and
`render` prints them. `against` makes two such folders: it runs another git revision beside the working tree.
"""
