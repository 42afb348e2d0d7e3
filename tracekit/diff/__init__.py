"""What changed between two sides, each one or several runs of a program, and whether the change is more than noise."""
