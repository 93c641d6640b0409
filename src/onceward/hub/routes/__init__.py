"""What the hub answers, one module for each part. A handler parses, calls, and renders."""
