"""What a user of the command line waits for."""
