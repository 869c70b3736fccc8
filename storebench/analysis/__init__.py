"""The meaning of records: summaries of cells, comparisons, limits, the answer and the plan."""
