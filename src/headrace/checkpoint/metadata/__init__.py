"""`_metadata`: what a checkpoint consists of, and its bytes."""
