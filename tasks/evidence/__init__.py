"""Evidence: from trajectories to verdicts, and from verdicts to reward."""
