"""taftcache: convex, composable, forgettable fine-tuning from cached features."""
