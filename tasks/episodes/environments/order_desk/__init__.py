"""The order desk: customers, products, stock, orders and mail on SQLite, and the clerk who runs it."""
