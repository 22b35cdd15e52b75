"""What looks into a store and changes nothing."""
