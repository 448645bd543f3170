"""The rules: what may be done safely, and the Redis state that says so."""
