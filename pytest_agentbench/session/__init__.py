"""What knows pytest."""
