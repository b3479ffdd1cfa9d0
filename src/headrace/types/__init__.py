"""Types, rows and their Arrow columns; the lowest floor, which everything else may import."""
