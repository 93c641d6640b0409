"""Tools of agent frameworks: bare, through Onceward's integrations, and through agent-once."""
