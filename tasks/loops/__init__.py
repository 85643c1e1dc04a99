"""Loops: the only place where sampler, environment, verifiers, reward and learner meet; all are handed in."""
