"""`AgentEnv`: an episode in a sandbox of its own, on any server that speaks the E2B API."""
