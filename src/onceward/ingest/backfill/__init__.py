"""Archives of messages, inserted from the first message to the last, as often as anybody likes."""
