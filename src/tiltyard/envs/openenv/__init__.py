"""OpenEnv, the wire of the field: its environments in this process, and behind a URL."""
