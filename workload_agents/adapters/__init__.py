"""How the memory of one engine or trainer is parked and restored: one module each."""
