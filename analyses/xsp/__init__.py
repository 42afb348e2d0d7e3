"""The 15 analyses of XSP over the recordings of a model at several levels.

`catalogue` holds a record of each, `runs` what a run is made of, `layers` and `kernels` the two tables that the analyses are
views of, `views` makes these, `series` compares runs. `tracekit xsp` and `tracekit.analyses.xsp.analysis` read the recordings.
"""
