"""Room for the Intent Layer."""
