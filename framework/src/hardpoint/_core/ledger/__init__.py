"""What is on disk: every hold and grant, who may write, and what operators did."""
