"""What operators do with a journal as a whole: backups, restores, copies between databases."""
