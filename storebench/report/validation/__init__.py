"""The rules that results must keep: within one record, within a run, and between records."""
