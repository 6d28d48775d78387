"""Parse shell text into simple commands with their effects, so that rules read structure instead of words."""
