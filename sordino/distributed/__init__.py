"""Distributed training: what ranks share, what they must agree on, and how they communicate."""
