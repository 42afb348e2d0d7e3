"""Code that readers of several formats share: stores of rows, excerpts, and the frames of a trace."""
