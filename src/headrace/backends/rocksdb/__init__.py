"""State in RocksDB on local disk, larger than memory."""
