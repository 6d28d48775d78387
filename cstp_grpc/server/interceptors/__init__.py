"""What happens to every call before and after its servicer."""
