"""What turns cost: a turn whose brain does nothing, and a tool call beside the bare function."""
