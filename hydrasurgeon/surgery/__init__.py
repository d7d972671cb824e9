"""Cut heads out, put members together, and repair what was cut."""
