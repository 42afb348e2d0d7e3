"""What readers of several formats share: files, stores of rows, excerpts."""
