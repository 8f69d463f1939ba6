"""From what the drivers list to what may be offered, and when to look again."""
