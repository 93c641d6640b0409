"""What turns cost: one whose brain does nothing, a call of a tool, and a stream that many follow."""
