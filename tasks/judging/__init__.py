"""Evaluation, gates, comparison and the report: what is concluded from judged trajectories."""
