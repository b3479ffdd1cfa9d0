"""The peers: each a small program of its own environment that runs the jump job and prints one JSON line."""
