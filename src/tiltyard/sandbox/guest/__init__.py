"""What runs inside a sandbox as its first process; standard library only, small, and not trusted by the host."""
