"""A backend at several concurrencies: what each level measured, where the knee is, and the greatest level that is good enough."""
