"""Claims in, prepared devices out, and back."""
