"""The verdict: what bounds a run, its largest costs, and what to try, read from results."""
