"""What strangers bring: found, started, called in time, and shown when they fail."""
