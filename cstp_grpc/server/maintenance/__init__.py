"""Operations on a journal as a whole: backups, restores, copies between databases."""
