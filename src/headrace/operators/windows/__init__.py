"""Windows: how a keyed stream is cut into pieces that are aggregated one by one."""
