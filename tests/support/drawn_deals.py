"""How an epoch may be dealt to ranks, as Hypothesis draws it."""

from hypothesis import given
from hypothesis import strategies as st

counts, ranks_drawn, batches_drawn = st.integers(1, 200), st.integers(1, 9), st.integers(1, 20)

any_deal = given(
    count=counts,
    ranks=ranks_drawn,
    batch_size=batches_drawn,
    pad=st.booleans(),
    most=st.none() | st.integers(1, 5),
)
"""Draws samples, ranks, samples per batch of a rank, whether it is padded, and the most steps, for a test."""
