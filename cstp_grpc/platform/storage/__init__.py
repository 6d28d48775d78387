"""Storage shared by all stores: engine, writer, pagination, delivery and migrations."""
