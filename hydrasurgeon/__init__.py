"""hydrasurgeon."""
