"""What a chain is made of, and the functions that users write."""
