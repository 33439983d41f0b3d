"""Tokens: conversations as ids that are appended and never re-encoded."""
