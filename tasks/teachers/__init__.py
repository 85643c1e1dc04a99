"""Teachers: how they are asked, what they cost, and what came of it."""
