"""Consumer groups: members, rebalances, assignors and committed offsets."""
