"""Steps that nobody marked: a range that is repeated, or a period in the sequence of launches (DEFINITIONS §1)."""
