"""The middleware beside the bare route and its peers: one server, one load, one table."""
