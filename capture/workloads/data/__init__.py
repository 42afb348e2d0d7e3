"""Data of the workloads: made-up, or read from files."""
