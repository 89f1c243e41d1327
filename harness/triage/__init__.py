"""Triage by board watts: windows, states, episodes, jobs; pure, on streams of samples."""
