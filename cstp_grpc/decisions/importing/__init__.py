"""Readers of decision records as people write them."""
