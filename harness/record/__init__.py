"""The contract between running and analysing: what a run leaves on disk, written and read."""
