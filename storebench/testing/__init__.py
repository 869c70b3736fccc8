"""For people who add a format: the tests that every format has to pass, and what they are made of.

Nothing here is imported unless it is asked for by name: `storebench.testing.contract`
needs pytest.
"""
