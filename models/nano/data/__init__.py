"""Seeded generators of everything that lily-nano learns."""
