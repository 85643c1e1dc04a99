"""Episodes: samplers, agents, the episode state machine, its driver and the files trajectories live in."""
