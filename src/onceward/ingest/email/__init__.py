"""Mail made into entries: read whatever it is made of, told apart, and keyed."""
