"""`make bench`: Onceward beside the raw ceiling, one statement per call, and its peers. One command, one table."""
