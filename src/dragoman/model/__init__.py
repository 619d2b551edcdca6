"""Values and pure functions: the objects of A2A, and the fold of a log into a task."""
