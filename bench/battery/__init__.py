"""Onceward and other libraries through the same accidents: a race, a kill, a lost exception, other arguments."""
