"""What authors write: an agent, its handlers, and the turn that a handler works on."""
