"""Messages between driver and tasks, and the sockets that carry them."""
