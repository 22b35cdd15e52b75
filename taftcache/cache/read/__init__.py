"""Reading: every byte verified before it is handed out."""
