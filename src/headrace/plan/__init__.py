"""A job as data: graph, uids, validation, chains and levels, guarantees, explain. No Spark in here."""
