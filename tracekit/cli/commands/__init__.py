"""The commands: a file for each, and one for those of single analyses."""
