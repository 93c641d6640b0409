"""Other libraries, each in its own process, in a separate environment (`.venv-peers`)."""
