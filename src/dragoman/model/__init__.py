"""Values and pure functions: what A2A speaks of, and how a log becomes a task."""
