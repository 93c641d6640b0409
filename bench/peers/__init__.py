"""Other libraries, each in a process of an environment of its own (`.venv-peers`)."""
