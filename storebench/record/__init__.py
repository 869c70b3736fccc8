"""The record of an epoch: its schema, lines, step tables, and the figures that follow from its steps."""
