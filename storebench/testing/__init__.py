"""For people who build on storebench: the tests that every format has to pass, and readers that misbehave.

Nothing here is imported unless it is asked for by name: `storebench.testing.contract`
needs pytest.
"""
