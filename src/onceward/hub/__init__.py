"""The hub: everything of this package behind one HTTP address, on one folder of data."""
