"""The report as JSON, and its schema."""
