"""What looks at one shard, class or sample of a store, or into a component's file."""
