"""What agent authors use: the agent, its handlers, and the turn that a handler works on."""
