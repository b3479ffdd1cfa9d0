"""Where keyed state lives while a job runs: on the heap or in RocksDB, by one contract."""
