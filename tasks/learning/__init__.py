"""Learning: rows, losses, the learner and its checkpoints. It knows no environment and no sampler."""
