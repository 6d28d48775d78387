"""Handing chat sessions from the guide to liaison agents."""
