"""Scores for people to read."""
