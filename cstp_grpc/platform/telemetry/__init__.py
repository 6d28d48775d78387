"""What a server tells of itself: metrics of its calls and of the work that its rooms do."""
