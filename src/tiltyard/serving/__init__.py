"""Environments behind a URL: an OpenEnv server on threads, one for each session, in one process or several."""
