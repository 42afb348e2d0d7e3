"""The 15 analyses of XSP over the recordings of a model at several levels.

`catalogue` holds a record of each, `runs` the recordings of a run, `layers` and `kernels` the two tables of which the analyses
are views. `views` makes these views, and `series` compares runs. `tracekit xsp` and `tracekit.analyses.xsp.analysis` read the recordings.
"""
